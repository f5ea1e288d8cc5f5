// Copies to and from another process's memory with process_vm_readv and process_vm_writev. One
// call moves many rows, but a bounded number of bytes, so that a cancelled transfer ends soon.
//
// Thread: any; blocks for the copy only.
#pragma once
#include "xfer/core/transport.h"

namespace mc::xfer {

// Moves the slice; the owner's word and the guard are read before and after, in the same system
// calls as the bytes of a read (the kernel works through a call's pieces in order). Errors: kStale,
// kUnavailable (gone, or refused by the kernel: another transport may still do it), kTimeout.
Result<> move_vm(const Slice& slice, const BufferInfo& buffer, const Clock& clock);

}  // namespace mc::xfer

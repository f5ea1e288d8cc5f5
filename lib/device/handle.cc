#include "device/handle.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/units.h"
#include "io/file.h"

namespace mc::device {
namespace {

// The 22nd field of its stat; the second, in parentheses, may hold anything.
Result<uint64_t> started_at(int pid) {
  MC_TRY(const std::string stat, io::read_file("/proc/" + std::to_string(pid) + "/stat", 4096));
  size_t at = stat.rfind(')');
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = stat.find(' ', at + 1);
  if (at == std::string::npos) return fail(Code::kCorrupt, "/proc/%d/stat is cut short", pid);
  const size_t end = stat.find(' ', at + 1);
  return parse_uint(std::string_view(stat).substr(at + 1, end - at - 1));
}

}  // namespace

Result<Handle> own_handle(std::string_view kind, int ordinal) {
  Handle h;
  std::copy_n(kind.data(), std::min(kind.size(), sizeof h.kind), h.kind);
  h.pid = ::getpid();
  h.ordinal = ordinal;
  MC_TRY(h.started, started_at(h.pid));
  return h;
}

std::string encode(const Handle& handle) {
  std::string out(sizeof handle, '\0');
  std::memcpy(out.data(), &handle, sizeof handle);
  return out;
}

Result<Handle> decode(std::string_view bytes, std::string_view kind) {
  Handle h;
  if (bytes.size() != sizeof h)
    return fail(Code::kCorrupt, "a handle of device memory has %zu bytes, not %zu", sizeof h,
                bytes.size());
  std::memcpy(&h, bytes.data(), sizeof h);
  const std::string_view of(h.kind, ::strnlen(h.kind, sizeof h.kind));
  if (of != kind)
    return fail(Code::kInvalid, "a handle of '%s' memory: this is a device of kind %s",
                escape(of).c_str(), std::string(kind).c_str());
  if (h.pid <= 0 || h.ordinal < 0 || h.bytes == 0 || h.offset > UINT64_MAX - h.bytes)
    return fail(Code::kCorrupt, "a handle of %s memory with impossible numbers",
                escape(of).c_str());
  if (h.pid == ::getpid())
    return fail(Code::kInvalid, "a handle of this process's own memory: use the memory itself");
  const auto started = started_at(h.pid);
  if (!started || *started != h.started)
    return fail(Code::kUnavailable, "process %d, which shared this memory, is gone", h.pid);
  return h;
}

}  // namespace mc::device

// Protection domains and memory regions. A key is slot << 16 | generation, so a stale one fails. A
// dma-buf is mapped here as long as it is registered: any descriptor that maps shared and writable
// serves (a udmabuf, a memfd), so that memory no address of the process reaches can be tried.
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "objects.h"
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

namespace mc::emu {

Span check_key(const Fabric& fabric, uint32_t key, uint32_t nic, uint32_t pd, unsigned access,
               uint64_t address, uint64_t length) {
  const MrSlot& slot = fabric->mr[key >> 16];
  if (key == 0 || slot.key.load() != key) return {};
  if (slot.nic != nic || slot.pd != pd || (slot.access & access) != access) return {};
  if (address < slot.iova || length > slot.length || address - slot.iova > slot.length - length)
    return {};
  return {slot.address + (address - slot.iova), true};
}

namespace {

constexpr unsigned kAccessKnown = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                                  IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_HUGETLB;

// Registration pins pages, so memory that is not mapped (or is a device's) is refused as by the
// kernel: one byte of each end is read through the same call that later moves the data.
bool readable(uint64_t address) {
  char byte;
  iovec here{&byte, 1}, there{reinterpret_cast<void*>(address), 1};
  return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 1;
}

// Whether the kernel pins the range for a NIC that writes to it: not memory that is mapped
// read-only, and not (since 6.5) a shared mapping of a file on a disk.
bool pins_for_writing(uint64_t from, uint64_t length) {
  FILE* const maps = fopen("/proc/self/maps", "re");
  if (maps == nullptr) return true;
  bool good = true;
  char line[4400];
  while (good && fgets(line, sizeof line, maps) != nullptr) {
    unsigned long start = 0, end = 0;
    char rights[5] = "", path[4200] = "";
    if (sscanf(line, "%lx-%lx %4s %*s %*s %*s %4199[^\n]", &start, &end, rights, path) < 3)
      continue;
    if (end <= from || start >= from + length) continue;
    good = rights[1] == 'w';
    struct statfs about {};
    if (rights[3] == 's' && path[0] == '/' && statfs(path, &about) == 0)
      good = good && about.f_type == TMPFS_MAGIC;
  }
  fclose(maps);
  return good;
}

// Where the host sees memory of a device that NICs may register; 0: nowhere.
uint64_t seen_address(const Fabric& fabric, uint64_t address, uint64_t length) {
  Held held(fabric->tables);
  for (const PeerMemory& memory : fabric->peer_memory)
    if (memory.pid == getpid() && address >= memory.address && length <= memory.length &&
        address - memory.address <= memory.length - length)
      return memory.seen + (address - memory.address);
  return 0;
}

// Of a descriptor; nothing else.
struct Mapped {
  void* start = nullptr;
  size_t length = 0;
};

ibv_mr* register_region(ibv_pd* ibpd, void* start, size_t length, uint64_t iova, unsigned access,
                        Mapped mapped = {}) {
  Pd* pd = of(ibpd);
  Context& context = *pd->context;
  auto address = reinterpret_cast<uint64_t>(start);
  if (context.dead()) return none(EIO);
  if ((access & IBV_ACCESS_ON_DEMAND) != 0) return none(EOPNOTSUPP);
  if ((access & ~unsigned(IBV_ACCESS_OPTIONAL_RANGE) & ~kAccessKnown) != 0) return none(EINVAL);
  if ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0 &&
      (access & IBV_ACCESS_LOCAL_WRITE) == 0)
    return none(EINVAL);
  if (length == 0 || address + length < address) return none(EINVAL);
  if (const uint64_t most = context.nic().max_mr_size.load(); most != 0 && length > most)
    return none(EINVAL);
  bool of_device = mapped.start != nullptr;
  if (!readable(address)) {
    address = seen_address(*context.fabric, address, length);
    of_device = true;
  }
  if (address == 0 || !readable(address) || !readable(address + length - 1)) return none(EFAULT);
  if ((access & IBV_ACCESS_LOCAL_WRITE) != 0 && mapped.start == nullptr &&
      !pins_for_writing(address, length))
    return none(EFAULT);
  // The time is the caller's: the device goes on.
  const double gib = double(length) / double(1 << 30);
  const uint64_t until = now_ns() + uint64_t(gib * double(context.nic().register_ns.load()));
  for (std::atomic<uint32_t> still{0}; now_ns() < until;) wait_on(still, 0, until);
  MrSlot* slot = context.fabric->take_mr(context.index);
  if (slot == nullptr) return none(ENOMEM);
  slot->nic = context.nic_index;
  slot->pd = ibpd->handle;
  slot->access = access;
  slot->of_device = of_device ? 1 : 0;
  slot->address = address;
  slot->length = length;
  slot->iova = (access & IBV_ACCESS_ZERO_BASED) != 0 ? 0 : iova;
  uint32_t key = context.fabric->index(*slot) << 16 | slot->generation;
  auto* mr = new Mr;
  mr->mr = {ibpd->context, ibpd, start, length, key >> 16, key, key};
  mr->slot = slot;
  mr->mapping = mapped.start;
  mr->mapped = mapped.length;
  pd->users++;
  slot->key.store(key);
  std::lock_guard lock(context.mutex);
  context.mrs.insert(mr);
  return &mr->mr;
}

// As the kernel: the range must lie within the buffer, and begin where its address does in a page.
ibv_mr* register_dmabuf(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                        unsigned access) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  struct stat about {};
  if (fd < 0 || fstat(fd, &about) != 0) return none(EBADF);
  if (length == 0 || offset % page != iova % page) return none(EINVAL);
  const auto bytes = static_cast<uint64_t>(std::max<off_t>(about.st_size, 0));
  if (offset > bytes || length > bytes - offset) return none(EINVAL);
  const uint64_t from = offset / page * page;
  const Mapped mapped{nullptr, static_cast<size_t>(offset - from + length)};
  void* at = mmap(nullptr, mapped.length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, off_t(from));
  if (at == MAP_FAILED) return none(EINVAL);
  ibv_mr* mr = register_region(pd, static_cast<char*>(at) + (offset - from), length, iova, access,
                               {at, mapped.length});
  if (mr != nullptr) return mr;
  const int error = errno;
  munmap(at, mapped.length);
  return none(error);
}

}  // namespace
}  // namespace mc::emu

using namespace mc::emu;

extern "C" {

ibv_pd* ibv_alloc_pd(ibv_context* ibcontext) {
  Context& context = *of(ibcontext);
  if (context.dead()) return none(EIO);
  auto* pd = new Pd;
  pd->pd.context = ibcontext;
  pd->pd.handle = (*context.fabric)->next_pd++;
  pd->context = &context;
  std::lock_guard lock(context.mutex);
  context.pds.insert(pd);
  return &pd->pd;
}

int ibv_dealloc_pd(ibv_pd* ibpd) {
  Pd* pd = of(ibpd);
  if (pd->users != 0) return EBUSY;
  {
    std::lock_guard lock(pd->context->mutex);
    pd->context->pds.erase(pd);
  }
  delete pd;
  return 0;
}

ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, size_t length, int access) {
  return register_region(pd, address, length, reinterpret_cast<uint64_t>(address),
                         unsigned(access));
}

ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* address, size_t length, uint64_t iova, int access) {
  return register_region(pd, address, length, iova, unsigned(access));
}

ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, size_t length, uint64_t iova, unsigned access) {
  return register_region(pd, address, length, iova, access);
}

ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                          int access) {
  return register_dmabuf(pd, offset, length, iova, fd, unsigned(access));
}

int ibv_rereg_mr(ibv_mr*, int, ibv_pd*, void*, size_t, int) { return IBV_REREG_MR_ERR_INPUT; }

int ibv_dereg_mr(ibv_mr* ibmr) {
  Mr* mr = of(ibmr);
  Context& context = *of(ibmr->context);
  mr->slot->key.store(0);
  // A sender stopped amid its copy holds the slot: the key is void all the same, and reaping frees
  // the slot once that process is gone.
  if (context.fabric->drain(*mr->slot)) context.fabric->free_mr(*mr->slot);
  of(ibmr->pd)->users--;
  {
    std::lock_guard lock(context.mutex);
    context.mrs.erase(mr);
  }
  if (mr->mapping != nullptr) munmap(mr->mapping, mr->mapped);
  delete mr;
  return 0;
}

}  // extern "C"

#include "fabric.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <climits>
#include <cstring>
#include <ctime>

namespace mc::emu {
namespace {

constexpr uint64_t kHeapStart = (sizeof(Layout) + 4095) / 4096 * 4096;
constexpr uint64_t kFileBytes = kHeapStart + kHeapBytes;

uint32_t size_class(uint64_t bytes) {
  return uint32_t(std::bit_width(std::max<uint64_t>(bytes, 64) - 1));
}

bool refuse(std::string* why, const std::string& text) {
  *why = text;
  return false;
}

}  // namespace

// The host and the NIC's number in it are those of the GUID.
void address(Nic& nic, bool ethernet) {
  const auto host = uint32_t(nic.guid >> 16 & 0xff), k = uint32_t(nic.guid & 0xffff) - 1;
  memset(nic.gids, 0, sizeof nic.gids);
  nic.ethernet = ethernet;
  nic.lid = uint16_t(ethernet ? 0 : host * 256 + k + 1);
  auto link_local = [&](ibv_gid& gid) {
    gid.raw[0] = 0xfe;
    gid.raw[1] = 0x80;
    for (int i = 0; i < 8; ++i) gid.raw[8 + i] = uint8_t(nic.guid >> (56 - 8 * i));
  };
  link_local(nic.gids[0]);
  if (!nic.ethernet) return;
  // As the kernel fills a RoCE port: 0 and 1 link-local, 2 and 3 the IPv4 address; v1, then v2.
  link_local(nic.gids[1]);
  for (int i : {2, 3}) {
    const uint8_t mapped[] = {0xff, 0xff, 10, 99, uint8_t(host), uint8_t(k + 1)};
    memcpy(&nic.gids[i].raw[10], mapped, sizeof mapped);
  }
}

namespace {

void fill(Layout& layout, const FabricOptions& options) {
  layout.version = kLayoutVersion;
  layout.bytes = kFileBytes;
  layout.heap_next = kHeapStart;
  layout.next_pd = 1;
  layout.next_rule = 1;
  layout.retry_percent = 100;
  init_lock(layout.tables);
  init_lock(layout.rules_lock);
  for (uint32_t host = 0; host < options.hosts; ++host) {
    for (uint32_t k = 0; k < options.nics; ++k) {
      Nic& nic = layout.nic[layout.nics++];
      std::string name =
          options.names.empty() ? options.prefix + std::to_string(k) : options.names[k];
      snprintf(nic.name, sizeof nic.name, "%s", name.c_str());
      nic.host = host;
      nic.guid = 0x0245'4d00'0000'0000 | uint64_t{host} << 16 | (k + 1);
      nic.mtu = options.mtu;
      nic.present = 1;
      nic.generation = 1;
      nic.up = 1;
      nic.rate = options.rate;
      nic.latency_ns = options.latency_ns;
      nic.pkeys[0] = 0xffff;
      nic.transport = IBV_TRANSPORT_IB;
      address(nic, options.ethernet);
    }
  }
}

}  // namespace

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return uint64_t(now.tv_sec) * 1'000'000'000 + uint64_t(now.tv_nsec);
}

void wake(std::atomic<uint32_t>& word) {
  word.fetch_add(1);
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void wait_on(std::atomic<uint32_t>& word, uint32_t value, uint64_t until) {
  timespec at{time_t(until / 1'000'000'000), long(until % 1'000'000'000)};
  syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, value, until == UINT64_MAX ? nullptr : &at, nullptr,
          FUTEX_BITSET_MATCH_ANY);
}

bool Fabric::create(const std::string& path, const FabricOptions& options, std::string* why) {
  if (options.hosts == 0 || options.nics == 0 || options.hosts * options.nics > kNicsMax)
    return refuse(why, "a fabric has 1 to " + std::to_string(kNicsMax) + " NICs in all");
  if (!options.names.empty() && options.names.size() != options.nics)
    return refuse(why, "a name for each of the " + std::to_string(options.nics) + " NICs, or none");
  std::vector<std::string> names = options.names;
  names.push_back(options.prefix);
  for (const std::string& name : names)
    if (name.empty() || name.size() > 32 || name.find('/') != std::string::npos)
      return refuse(why, "'" + name + "' is no device name: 1 to 32 characters, no slash");
  std::string temporary = path + ".new." + std::to_string(getpid());
  int fd = ::open(temporary.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return refuse(why, temporary + ": " + strerror(errno));
  bool sized = ftruncate(fd, off_t(kFileBytes)) == 0;
  void* map =
      sized ? mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
  close(fd);
  if (map == MAP_FAILED) {
    std::string text = temporary + ": " + strerror(errno) + ": a fabric wants a file in /dev/shm";
    unlink(temporary.c_str());
    return refuse(why, text);
  }
  auto* layout = static_cast<Layout*>(map);
  fill(*layout, options);
  layout->magic = kMagic;
  munmap(map, kFileBytes);
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    std::string text = path + ": " + strerror(errno);
    unlink(temporary.c_str());
    return refuse(why, text);
  }
  return true;
}

std::shared_ptr<Fabric> Fabric::open(const std::string& path, std::string* why) {
  int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) {
    *why = path + ": " + strerror(errno) + ": make it with verbs-emulator create";
    return nullptr;
  }
  struct stat status;
  void* map = MAP_FAILED;
  if (fstat(fd, &status) == 0 && uint64_t(status.st_size) == kFileBytes)
    map = mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (map == MAP_FAILED) {
    *why = path + ": not a fabric of this version: make it anew with verbs-emulator create";
    return nullptr;
  }
  auto* layout = static_cast<Layout*>(map);
  auto fabric = std::make_shared<Fabric>(layout, path);
  if (layout->magic != kMagic || layout->version != kLayoutVersion || layout->bytes != kFileBytes ||
      layout->nics > kNicsMax) {
    *why = path + ": not a fabric of this version: make it anew with verbs-emulator create";
    return nullptr;
  }
  return fabric;
}

Fabric::~Fabric() { munmap(layout_, kFileBytes); }

uint64_t Fabric::allocate(uint64_t bytes) {
  uint32_t k = size_class(bytes);
  Held held(layout_->tables);
  uint64_t offset = layout_->heap_free[k];
  if (offset != 0) {
    layout_->heap_free[k] = *at<uint64_t>(offset);
    memset(at<char>(offset), 0, bytes);
    return offset;
  }
  uint64_t size = uint64_t{1} << k;
  if (layout_->heap_next + size > kFileBytes) return 0;
  offset = layout_->heap_next;
  layout_->heap_next += size;
  return offset;
}

void Fabric::release(uint64_t offset, uint64_t bytes) {
  if (offset == 0) return;
  uint32_t k = size_class(bytes);
  Held held(layout_->tables);
  *at<uint64_t>(offset) = layout_->heap_free[k];
  layout_->heap_free[k] = offset;
}

bool Fabric::alive(ContextSlot& slot) const {
  if (slot.generation.load() == 0 || slot.gone.load() != 0) return false;
  int rc = pthread_mutex_trylock(&slot.life.mutex);
  if (rc == EBUSY) return true;
  if (rc == EOWNERDEAD) {
    slot.gone.store(1);
    pthread_mutex_consistent(&slot.life.mutex);
  }
  if (rc == 0 || rc == EOWNERDEAD) pthread_mutex_unlock(&slot.life.mutex);
  return false;
}

void Fabric::raise(uint32_t context, uint32_t bits) const {
  ContextSlot& slot = layout_->context[context];
  slot.pending.fetch_or(bits);
  wake(slot.doorbell);
}

int Fabric::find_nic(const ibv_gid& gid) const {
  for (uint32_t i = 0; i < layout_->nics; ++i)
    for (const ibv_gid& own : layout_->nic[i].gids)
      if (memcmp(own.raw, gid.raw, sizeof gid.raw) == 0 && own.global.interface_id != 0)
        return int(i);
  return -1;
}

int Fabric::find_nic(uint16_t lid) const {
  for (uint32_t i = 0; i < layout_->nics; ++i)
    if (lid != 0 && layout_->nic[i].lid == lid) return int(i);
  return -1;
}

void Fabric::fail_qp(QpSlot& slot, uint32_t number, int event) const {
  uint32_t context;
  {
    Held held(slot.lock);
    if (slot.number.load() != number) return;
    context = slot.context;
    if (slot.state.load() == IBV_QPS_RESET || slot.state.load() == IBV_QPS_ERR) event = -1;
    if (slot.state.load() != IBV_QPS_RESET) slot.state.store(IBV_QPS_ERR);
  }
  if (event >= 0) slot.events.fetch_or(1u << event);
  raise(context, kSweepQps);
}

bool Fabric::drain(const MrSlot& slot) const {
  uint32_t mark = index(slot) + 1;
  uint64_t until = now_ns() + 2'000'000'000;
  for (uint32_t i = 0; i < layout_->qps_high.load(); ++i) {
    while (layout_->hazard[i].mr.load() == mark &&
           alive(layout_->context[layout_->qp[i].context])) {
      if (now_ns() > until) return false;
      sched_yield();
    }
  }
  return true;
}

}  // namespace mc::emu

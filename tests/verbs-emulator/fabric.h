#pragma once
// A mapped fabric: creating and opening the file, taking and freeing slots of its tables, its heap,
// and waking the processes that have devices open.
//
// Thread: any thread.
// Errors: text in *why, which names the file and the remedy; a full table is nullptr or 0.

#include <memory>
#include <string>
#include <vector>

#include "layout.h"
#include "shared_lock.h"

namespace mc::emu {

uint64_t now_ns();
// Gives a NIC the addresses it has in a new fabric.
void address(Nic& nic, bool ethernet);
void wake(std::atomic<uint32_t>& word);
// Sleeps while word == value, at most until `until` (UINT64_MAX: for ever).
void wait_on(std::atomic<uint32_t>& word, uint32_t value, uint64_t until);

struct FabricOptions {
  uint32_t hosts = 2;
  uint32_t nics = 1;  // each host's
  bool ethernet = false;
  uint64_t rate = 0;
  uint64_t latency_ns = 0;
  uint32_t mtu = IBV_MTU_4096;
  std::string prefix = "emu";        // NIC k of a host is prefix + k
  std::vector<std::string> names{};  // instead: a name for each NIC of a host
};

class Fabric {
 public:
  // Puts a new fabric in place of whatever `path` was; those who have the old one keep it.
  static bool create(const std::string& path, const FabricOptions& options, std::string* why);
  static std::shared_ptr<Fabric> open(const std::string& path, std::string* why);
  Fabric(Layout* layout, std::string path) : layout_(layout), path_(std::move(path)) {}
  ~Fabric();
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  Layout& operator*() const { return *layout_; }
  Layout* operator->() const { return layout_; }
  const std::string& path() const { return path_; }

  uint64_t allocate(uint64_t bytes);  // an offset, of zeroed memory; 0: full
  void release(uint64_t offset, uint64_t bytes);
  template <class T>
  T* at(uint64_t offset) const {
    return reinterpret_cast<T*>(reinterpret_cast<char*>(layout_) + offset);
  }

  ContextSlot* take_context(uint32_t nic);
  QpSlot* take_qp(uint32_t context);
  CqSlot* take_cq(uint32_t context, uint32_t capacity);
  SrqSlot* take_srq(uint32_t context, uint32_t capacity);
  MrSlot* take_mr(uint32_t context);
  bool make_ring(ReceiveRing& ring, uint32_t capacity);

  void free_qp(QpSlot& slot);
  void free_cq(CqSlot& slot);
  void free_srq(SrqSlot& slot);
  void free_mr(MrSlot& slot);  // the caller has drained it
  void free_context(ContextSlot& slot);

  uint32_t index(const ContextSlot& s) const { return uint32_t(&s - layout_->context); }
  uint32_t index(const QpSlot& s) const { return uint32_t(&s - layout_->qp); }
  uint32_t index(const CqSlot& s) const { return uint32_t(&s - layout_->cq); }
  uint32_t index(const SrqSlot& s) const { return uint32_t(&s - layout_->srq); }
  uint32_t index(const MrSlot& s) const { return uint32_t(&s - layout_->mr); }

  // Whether the process that opened it still lives; notes when it does not.
  bool alive(ContextSlot& slot) const;
  void raise(uint32_t context, uint32_t bits) const;
  // Frees what dead processes left.
  void reap();

  int find_nic(const ibv_gid& gid) const;  // -1: none
  int find_nic(uint16_t lid) const;

  // Puts a queue pair in the error state, with an async event (or -1) for its owner, whose engine
  // thread then flushes it. Not with its lock held.
  void fail_qp(QpSlot& slot, uint32_t number, int event) const;
  // Waits until no sender is amid a copy into the region (up to 2 s for a stopped one).
  bool drain(const MrSlot& slot) const;

 private:
  template <class Slot>
  Slot* take(Slot* table, uint32_t size, uint32_t& cursor);

  Layout* layout_;
  std::string path_;
};

}  // namespace mc::emu

#include "p2p/filecopy/remote.h"

#include <algorithm>

#include "p2p/filecopy/service.h"

namespace mc::p2p::filecopy {

class Remote::Taken {
 public:
  explicit Taken(Remote& remote) : remote_(remote) {
    Lock lock(remote_.mutex_);
    const auto free = std::ranges::find_if(remote_.slots_, [](auto& l) { return !l->taken; });
    MC_CHECK(free != remote_.slots_.end());
    slot_ = free->get();
    slot_->taken = true;
  }
  ~Taken() {
    Lock lock(remote_.mutex_);
    slot_->taken = false;
  }
  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;
  TransferSlot& operator*() const { return *slot_; }
  TransferSlot* operator->() const { return slot_; }

 private:
  Remote& remote_;
  TransferSlot* slot_;
};

template <class M>
Result<typename M::Reply> Remote::call(const M& message) {
  return Taken(*this)->client->call(message, budget_);
}

Result<std::unique_ptr<Remote>> Remote::open(xfer::Engine& engine, const Clock& clock,
                                             const std::string& address, uint32_t lanes,
                                             Duration budget) {
  std::unique_ptr<Remote> remote(new Remote(engine, clock, address, budget));
  Error refused;
  for (uint32_t i = 0; i < std::max(1u, lanes); ++i) {
    auto slot = std::make_unique<TransferSlot>();
    MC_TRY(slot->client, rpc::SyncClient::connect(address, clock));
    auto lease = slot->client->call(LeaseSlot{}, budget);
    if (!lease && lease.error().code == Code::kUnsupported)
      return fail(Code::kUnsupported, "%s offers memory and no folder: serve it with --root DIR",
                  address.c_str());
    if (!lease && lease.error().code != Code::kBusy) return fail(lease.error());
    if (!lease) {
      refused = lease.error();
      break;
    }
    slot->lease = *lease;
    slot->leased = clock.now();
    remote->slots_.push_back(std::move(slot));
  }
  if (remote->slots_.empty()) return fail(refused);
  MC_TRY(remote->segment_, engine.open_segment(address, budget));
  return remote;
}

Remote::~Remote() {
  constexpr Duration kReturnBudget = std::chrono::milliseconds(200);
  for (const auto& slot : slots_)
    if (!slot->client->call(ReturnSlot{slot->lease.ticket}, kReturnBudget)) return;  // it is gone
}

// Renews the lease of a slot that was idle, because it may be leased to another copier now.
Result<> Remote::renew(TransferSlot& slot) {
  const Time now = clock_.now();
  if (now - slot.leased > Service::kSlotIdle / 3) {
    MC_TRY(slot.lease, slot.client->call(LeaseSlot{slot.lease.ticket}, budget_));
  }
  slot.leased = now;
  return {};
}

Result<> Remote::move(xfer::Op op, const TransferSlot& slot, std::span<std::byte> memory) {
  xfer::Request r;
  r.op = op;
  r.local = memory.data();
  r.segment = segment_;
  r.offset = slot.lease.offset;
  r.bytes = memory.size();
  return engine_.transfer_sync(r, budget_);
}

Result<TreeEntry> Remote::look(const std::string& path) {
  MC_TRY(FoundEntry found, call(LookAt{path}));
  if (found.entry.bytes > kFileBytesMax)
    return fail(Code::kInvalid, "%s tells of a file of %llu bytes", address_.c_str(),
                static_cast<unsigned long long>(found.entry.bytes));
  return std::move(found.entry);
}

Result<Page> Remote::list(const std::string& path, const std::string& after) {
  MC_TRY(Page page, call(ListFolder{path, after}));
  for (const TreeEntry& e : page.entries)
    if (e.bytes > kFileBytesMax)
      return fail(Code::kInvalid, "%s tells of a file of %llu bytes", address_.c_str(),
                  static_cast<unsigned long long>(e.bytes));
  if (page.more && page.last <= after)
    return fail(Code::kInvalid, "%s lists '%s' without an end", address_.c_str(), path.c_str());
  return page;
}

Result<std::vector<uint64_t>> Remote::sums(const TreeEntry& file, uint64_t first, uint32_t count) {
  MC_TRY(Sums sums, call(SumPieces{file, 0, first, count}));
  return std::move(sums.sums);
}

Result<uint64_t> Remote::load(const TreeEntry& file, uint64_t piece, std::span<std::byte> into) {
  const Taken slot(*this);
  MC_TRY_(renew(*slot));
  MC_TRY(const Loaded loaded,
         slot->client->call(LoadPiece{slot->lease.ticket, file, piece}, budget_));
  MC_TRY_(move(xfer::Op::kRead, *slot, into.first(piece_bytes(file.bytes, piece))));
  return loaded.sum;
}

Result<bool> Remote::make_folder(const std::string& path, uint32_t mode) {
  MC_TRY(const Done done, call(MakeFolder{path, mode}));
  return done.made;
}

Result<> Remote::set_mode(const std::string& path, uint32_t mode) {
  MC_TRY_(call(SetMode{path, mode}));
  return {};
}

class Remote::RemotePart : public PartialFile {
 public:
  RemotePart(Remote& remote, TreeEntry file, uint64_t id, p2p::ShardSet present)
      : remote_(remote), file_(std::move(file)), id_(id), present_(std::move(present)) {}

  const p2p::ShardSet& present() const override { return present_; }
  Result<std::vector<uint64_t>> sums(uint64_t first, uint32_t count) override {
    MC_TRY(Sums sums, remote_.call(SumPieces{file_, id_, first, count}));
    return std::move(sums.sums);
  }
  Result<> store(uint64_t piece, std::span<std::byte> bytes, uint64_t sum) override {
    const Taken slot(remote_);
    MC_TRY_(remote_.renew(*slot));
    MC_TRY_(remote_.move(xfer::Op::kWrite, *slot, bytes.first(piece_bytes(file_.bytes, piece))));
    MC_TRY_(slot->client->call(StorePiece{slot->lease.ticket, id_, piece, sum}, remote_.budget_));
    return {};
  }
  Result<> finish(uint32_t mode) override {
    MC_TRY_(remote_.call(FinishFile{id_, mode}));
    return {};
  }

 private:
  Remote& remote_;
  const TreeEntry file_;
  const uint64_t id_;
  const p2p::ShardSet present_;
};

Result<std::unique_ptr<PartialFile>> Remote::begin(const TreeEntry& file) {
  MC_TRY(const Begun begun, call(BeginFile{file}));
  MC_TRY(auto present, p2p::ShardSet::from(begun.present.bytes, pieces_of(file.bytes)));
  return std::unique_ptr<PartialFile>(
      std::make_unique<RemotePart>(*this, file, begun.part, std::move(present)));
}

}  // namespace mc::p2p::filecopy

#include "p2p/filecopy/remote.h"

#include <algorithm>

#include "p2p/filecopy/service.h"

namespace mc::p2p::filecopy {

class Remote::Taken {
 public:
  explicit Taken(Remote& remote) : remote_(remote) {
    Lock lock(remote_.mutex_);
    const auto free = std::ranges::find_if(remote_.lanes_, [](auto& l) { return !l->taken; });
    MC_CHECK(free != remote_.lanes_.end());
    lane_ = free->get();
    lane_->taken = true;
  }
  ~Taken() {
    Lock lock(remote_.mutex_);
    lane_->taken = false;
  }
  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;
  Lane& operator*() const { return *lane_; }
  Lane* operator->() const { return lane_; }

 private:
  Remote& remote_;
  Lane* lane_;
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
    auto lane = std::make_unique<Lane>();
    MC_TRY(lane->client, rpc::SyncClient::connect(address, clock));
    auto slot = lane->client->call(LendSlot{}, budget);
    if (!slot && slot.error().code == Code::kUnsupported)
      return fail(Code::kUnsupported, "%s offers memory and no folder: serve it with --root DIR",
                  address.c_str());
    if (!slot && slot.error().code != Code::kBusy) return fail(slot.error());
    if (!slot) {
      refused = slot.error();
      break;
    }
    lane->slot = *slot;
    lane->lent = clock.now();
    remote->lanes_.push_back(std::move(lane));
  }
  if (remote->lanes_.empty()) return fail(refused);
  MC_TRY(remote->segment_, engine.open_segment(address, budget));
  return remote;
}

Remote::~Remote() {
  constexpr Duration kCourtesy = std::chrono::milliseconds(200);
  for (const auto& lane : lanes_)
    if (!lane->client->call(ReturnSlot{lane->slot.ticket}, kCourtesy)) return;  // it is gone
}

// A slot that was idle is asked for again: it may have been lent to somebody else.
Result<> Remote::renew(Lane& lane) {
  const Time now = clock_.now();
  if (now - lane.lent > Service::kSlotIdle / 3) {
    MC_TRY(lane.slot, lane.client->call(LendSlot{lane.slot.ticket}, budget_));
  }
  lane.lent = now;
  return {};
}

Result<> Remote::move(xfer::Op op, const Lane& lane, std::span<std::byte> memory) {
  xfer::Request r;
  r.op = op;
  r.local = memory.data();
  r.segment = segment_;
  r.offset = lane.slot.offset;
  r.bytes = memory.size();
  return engine_.transfer_sync(r, budget_);
}

Result<Entry> Remote::look(const std::string& path) {
  MC_TRY(FoundEntry found, call(LookAt{path}));
  if (found.entry.bytes > kFileBytesMax)
    return fail(Code::kInvalid, "%s tells of a file of %llu bytes", address_.c_str(),
                static_cast<unsigned long long>(found.entry.bytes));
  return std::move(found.entry);
}

Result<Page> Remote::list(const std::string& path, const std::string& after) {
  MC_TRY(Page page, call(ListFolder{path, after}));
  for (const Entry& e : page.entries)
    if (e.bytes > kFileBytesMax)
      return fail(Code::kInvalid, "%s tells of a file of %llu bytes", address_.c_str(),
                  static_cast<unsigned long long>(e.bytes));
  if (page.more && page.last <= after)
    return fail(Code::kInvalid, "%s lists '%s' without an end", address_.c_str(), path.c_str());
  return page;
}

Result<std::vector<uint64_t>> Remote::sums(const Entry& file, uint64_t first, uint32_t count) {
  MC_TRY(Sums sums, call(SumPieces{file, 0, first, count}));
  return std::move(sums.sums);
}

Result<uint64_t> Remote::load(const Entry& file, uint64_t piece, std::span<std::byte> into) {
  const Taken lane(*this);
  MC_TRY_(renew(*lane));
  MC_TRY(const Loaded loaded,
         lane->client->call(LoadPiece{lane->slot.ticket, file, piece}, budget_));
  MC_TRY_(move(xfer::Op::kRead, *lane, into.first(piece_bytes(file.bytes, piece))));
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

class Remote::RemotePart : public Part {
 public:
  RemotePart(Remote& remote, Entry file, uint64_t id, p2p::ShardSet present)
      : remote_(remote), file_(std::move(file)), id_(id), present_(std::move(present)) {}

  const p2p::ShardSet& present() const override { return present_; }
  Result<std::vector<uint64_t>> sums(uint64_t first, uint32_t count) override {
    MC_TRY(Sums sums, remote_.call(SumPieces{file_, id_, first, count}));
    return std::move(sums.sums);
  }
  Result<> store(uint64_t piece, std::span<std::byte> bytes, uint64_t sum) override {
    const Taken lane(remote_);
    MC_TRY_(remote_.renew(*lane));
    MC_TRY_(remote_.move(xfer::Op::kWrite, *lane, bytes.first(piece_bytes(file_.bytes, piece))));
    MC_TRY_(lane->client->call(StorePiece{lane->slot.ticket, id_, piece, sum}, remote_.budget_));
    return {};
  }
  Result<> finish(uint32_t mode) override {
    MC_TRY_(remote_.call(FinishFile{id_, mode}));
    return {};
  }

 private:
  Remote& remote_;
  const Entry file_;
  const uint64_t id_;
  const p2p::ShardSet present_;
};

Result<std::unique_ptr<Part>> Remote::begin(const Entry& file) {
  MC_TRY(const Begun begun, call(BeginFile{file}));
  MC_TRY(auto present, p2p::ShardSet::from(begun.present.bytes, pieces_of(file.bytes)));
  return std::unique_ptr<Part>(
      std::make_unique<RemotePart>(*this, file, begun.part, std::move(present)));
}

}  // namespace mc::p2p::filecopy

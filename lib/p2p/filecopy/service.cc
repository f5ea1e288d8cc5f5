#include "p2p/filecopy/service.h"

#include <algorithm>

#include "base/hash.h"
#include "rpc/server.h"

namespace mc::p2p::filecopy {
namespace {
constexpr Duration kPostAgain = std::chrono::milliseconds(1);
}  // namespace

Service::Service(io::Loop& loop, std::unique_ptr<Tree> tree, xfer::Memory memory, Config config)
    : loop_(loop),
      tree_(std::move(tree)),
      memory_(std::move(memory)),
      config_(config),
      random_(config.seed),
      leased_(memory_.size() / kPieceBytes) {
  for (uint32_t i = 0; i < std::max(1u, config_.threads); ++i)
    threads_.emplace_back([this] { work(); });
}

Service::~Service() {
  {
    Lock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (auto& t : threads_) t.join();
}

Result<std::unique_ptr<Service>> Service::open(io::Loop& loop, const std::string& folder,
                                               xfer::Memory memory, Config config) {
  if (memory.size() < kPieceBytes)
    return fail(Code::kInvalid, "%s of memory to stage files in is less than the %s of a piece",
                rounded_bytes_text(memory.size()).c_str(), rounded_bytes_text(kPieceBytes).c_str());
  MC_TRY(auto tree, Tree::open(folder));
  return std::unique_ptr<Service>(new Service(loop, std::move(tree), std::move(memory), config));
}

bool Service::enqueue(std::function<void()> work) {
  {
    Lock lock(mutex_);
    if (queue_.size() >= kQueuedMax) return false;
    queue_.push_back(std::move(work));
  }
  changed_.notify_one();
  return true;
}

void Service::work() {
  for (;;) {
    std::function<void()> next;
    {
      Lock lock(mutex_);
      while (queue_.empty() && !stopping_) changed_.wait(mutex_);
      if (stopping_) return;
      next = std::move(queue_.front());
      queue_.pop_front();
    }
    next();
  }
}

// Only the loop's thread may send or drop a reply. An overloaded loop refuses tasks for a while.
void Service::post(std::function<void()> task) {
  const auto shared = std::make_shared<std::function<void()>>(std::move(task));
  while (!loop_.post([shared] {
    const std::function<void()> on_loop = std::move(*shared);  // its captures end here too
    on_loop();
  })) {
    Lock lock(mutex_);
    if (stopping_) return unanswered_.push_back(std::move(*shared));
    changed_.wait_for(mutex_, kPostAgain);
  }
}

template <class M>
void Service::answer(
    rpc::Server& server,
    std::function<Result<std::function<Result<typename M::Reply>()>>(const M&, Time)> prepare) {
  using Reply = typename M::Reply;
  server.on_later<M>([this, prepare = std::move(prepare)](const M& m, const rpc::Call& call,
                                                          const rpc::Reply<Reply>& reply) {
    auto job = prepare(m, call.now);
    if (!job) return reply.error(job.error());
    const bool queued =
        enqueue([this, job = std::move(*job), reply = reply, deadline = call.deadline]() mutable {
          Result<Reply> result =
              fail(Code::kTimeout, "the call waited past its deadline for a thread");
          if (loop_.clock().now() < deadline) result = job();
          post([reply = std::move(reply), result = std::move(result)] { reply(result); });
        });
    if (!queued) reply.error({Code::kBusy, "too many calls wait for files here: try again"});
  });
}

Result<SlotLease> Service::lease(uint64_t ticket, Time now) {
  size_t at = leased_.size();
  for (size_t i = 0; i < leased_.size(); ++i) {
    if (ticket != 0 && leased_[i].ticket == ticket) {
      at = i;
      break;
    }
    if (at == leased_.size() && (leased_[i].ticket == 0 || now - leased_[i].used > kSlotIdle))
      at = i;
  }
  if (at == leased_.size())
    return fail(Code::kBusy, "all %zu slots here are leased to other copies", leased_.size());
  if (ticket == 0 || leased_[at].ticket != ticket) leased_[at].ticket = random_.next() | 1;
  leased_[at].used = now;
  return SlotLease{leased_[at].ticket, memory_.offset() + at * kPieceBytes, config_.writable};
}

Result<std::span<std::byte>> Service::slot(uint64_t ticket, Time now) {
  for (size_t i = 0; i < leased_.size(); ++i) {
    if (ticket == 0 || leased_[i].ticket != ticket) continue;
    leased_[i].used = now;
    return memory_.bytes().subspan(i * kPieceBytes, kPieceBytes);
  }
  return fail(Code::kStale, "the lease of the slot expired: no call came for %s",
              to_text(kSlotIdle).c_str());
}

Result<> Service::writable() const {
  if (config_.writable) return {};
  return fail(Code::kDenied,
              "the folder is offered read-only: serve it with --root and --writable");
}

Result<Service::UploadPtr> Service::upload(uint64_t part, Time now) {
  const auto it = uploads_.find(part);
  if (it == uploads_.end())
    return fail(Code::kStale, "the file is written by another copy now, or this one paused long");
  it->second->used = now;
  return it->second;
}

// Ends other uploads of that path, and the least recently used one when there are too many.
uint64_t Service::add_upload(const TreeEntry& file, Time now, std::vector<UploadPtr>& ended) {
  auto oldest = uploads_.end();
  for (auto it = uploads_.begin(); it != uploads_.end();) {
    if (it->second->path == file.path) {
      ended.push_back(it->second);
      it = uploads_.erase(it);
      continue;
    }
    if (oldest == uploads_.end() || it->second->used < oldest->second->used) oldest = it;
    ++it;
  }
  if (uploads_.size() >= kPartsMax) {
    ended.push_back(oldest->second);
    uploads_.erase(oldest);
  }
  const uint64_t id = random_.next() | 1;
  const auto mine = std::make_shared<Upload>(file.path);
  mine->used = now;
  uploads_[id] = mine;
  return id;
}

void Service::serve_reading(rpc::Server& server) {
  server.on<LeaseSlot>(
      [this](const LeaseSlot& m, const rpc::Call& call) { return lease(m.ticket, call.now); });
  server.on<ReturnSlot>([this](const ReturnSlot& m, const rpc::Call&) -> Result<Done> {
    for (LeasedSlot& l : leased_)
      if (l.ticket == m.ticket) l.ticket = 0;
    return Done{};
  });
  answer<LookAt>(server, [this](const LookAt& m, Time) {
    return [this, m]() -> Result<FoundEntry> {
      MC_TRY(TreeEntry e, tree_->look(m.path));
      return FoundEntry{std::move(e)};
    };
  });
  answer<ListFolder>(server, [this](const ListFolder& m, Time) {
    return [this, m] { return tree_->list(m.path, m.after); };
  });
  answer<SumPieces>(server,
                    [this](const SumPieces& m, Time now) -> Result<std::function<Result<Sums>()>> {
                      UploadPtr up;
                      if (m.part != 0) {
                        MC_TRY(up, upload(m.part, now));
                      }
                      return [this, m, up]() -> Result<Sums> {
                        if (up == nullptr) {
                          MC_TRY(auto sums, tree_->sums(m.file, m.first, m.count));
                          return Sums{std::move(sums)};
                        }
                        Lock lock(up->mutex);
                        if (up->part == nullptr)
                          return fail(Code::kStale, "another copy writes %s", up->path.c_str());
                        MC_TRY(auto sums, up->part->sums(m.first, m.count));
                        return Sums{std::move(sums)};
                      };
                    });
  answer<LoadPiece>(
      server, [this](const LoadPiece& m, Time now) -> Result<std::function<Result<Loaded>()>> {
        MC_TRY(const auto into, slot(m.ticket, now));
        return [this, m, into]() -> Result<Loaded> {
          MC_TRY(const uint64_t sum, tree_->load(m.file, m.piece, into));
          return Loaded{sum};
        };
      });
}

void Service::serve_writing(rpc::Server& server) {
  answer<MakeFolder>(server,
                     [this](const MakeFolder& m, Time) -> Result<std::function<Result<Done>()>> {
                       MC_TRY_(writable());
                       return [this, m]() -> Result<Done> {
                         MC_TRY(const bool made, tree_->make_folder(m.path, m.mode));
                         return Done{made};
                       };
                     });
  answer<SetMode>(server, [this](const SetMode& m, Time) -> Result<std::function<Result<Done>()>> {
    MC_TRY_(writable());
    return [this, m]() -> Result<Done> {
      MC_TRY_(tree_->set_mode(m.path, m.mode));
      return Done{};
    };
  });
  answer<BeginFile>(
      server, [this](const BeginFile& m, Time now) -> Result<std::function<Result<Begun>()>> {
        MC_TRY_(writable());
        std::vector<UploadPtr> ended;
        const uint64_t id = add_upload(m.file, now, ended);
        return [this, m, id, mine = uploads_[id], ended = std::move(ended)]() -> Result<Begun> {
          for (const UploadPtr& other : ended) {
            Lock lock(other->mutex);
            other->part.reset();
          }
          Lock lock(mine->mutex);
          MC_TRY(mine->part, tree_->begin(m.file));
          return Begun{id, {mine->part->present().bytes()}};
        };
      });
  answer<StorePiece>(
      server, [this](const StorePiece& m, Time now) -> Result<std::function<Result<Done>()>> {
        MC_TRY(const auto bytes, slot(m.ticket, now));
        MC_TRY(const UploadPtr up, upload(m.part, now));
        return [m, up, bytes]() -> Result<Done> {
          Lock lock(up->mutex);
          if (up->part == nullptr)
            return fail(Code::kStale, "another copy writes %s", up->path.c_str());
          MC_TRY_(up->part->store(m.piece, bytes, m.sum));
          return Done{};
        };
      });
  answer<FinishFile>(
      server, [this](const FinishFile& m, Time now) -> Result<std::function<Result<Done>()>> {
        MC_TRY(const UploadPtr up, upload(m.part, now));
        uploads_.erase(m.part);
        return [m, up]() -> Result<Done> {
          Lock lock(up->mutex);
          if (up->part == nullptr)
            return fail(Code::kStale, "another copy writes %s", up->path.c_str());
          MC_TRY_(up->part->finish(m.mode));
          up->part.reset();
          return Done{};
        };
      });
}

void Service::serve(rpc::Server& server) {
  serve_reading(server);
  serve_writing(server);
}

}  // namespace mc::p2p::filecopy

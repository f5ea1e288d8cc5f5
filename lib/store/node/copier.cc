#include "store/node/copier.h"

#include <algorithm>
#include <span>

#include "base/hash.h"
#include "store/protocol/transfer_plan.h"

namespace mc::store {
namespace {
constexpr Duration kOpen = std::chrono::seconds(1);
constexpr Duration kSubmitRetry = std::chrono::milliseconds(1);
}  // namespace

Copier::Copier(io::Loop& loop, xfer::Engine& engine, At at, Duration budget, Answer answer)
    : loop_(loop),
      engine_(engine),
      at_(std::move(at)),
      budget_(budget),
      answer_(std::move(answer)),
      thread_([this] { run(); }) {}

Copier::~Copier() {
  {
    Lock lock(mutex_);
    stopping_ = true;
    waiting_.clear();
  }
  changed_.notify_all();
  cancel_current();
  thread_.join();
}

void Copier::copy(const Order& order) {
  {
    Lock lock(mutex_);
    waiting_.push_back(order);
  }
  changed_.notify_all();
}

void Copier::check(const Order& order) {
  {
    Lock lock(mutex_);
    waiting_.push_front(order);
  }
  changed_.notify_all();
}

void Copier::cancel(uint64_t offset) {
  {
    Lock lock(mutex_);
    std::erase_if(waiting_, [&](const Order& o) { return o.record.offset == offset; });
    if (!busy_ || current_ != offset) return;
  }
  cancel_current();
}

void Copier::cancel_all() {
  {
    Lock lock(mutex_);
    waiting_.clear();
  }
  cancel_current();
}

void Copier::cancel_current() {
  std::optional<xfer::BatchId> batch;
  {
    Lock lock(mutex_);
    if (!busy_) return;
    cancelled_ = true;
    while (starting_) changed_.wait(mutex_);
    batch = batch_;
    cancelling_ = batch.has_value();
  }
  if (!batch) return;
  engine_.cancel(*batch);
  {
    Lock lock(mutex_);
    cancelling_ = false;
  }
  changed_.notify_all();
}

void Copier::run() {
  for (;;) {
    Order order;
    {
      Lock lock(mutex_);
      while (waiting_.empty() && !stopping_) changed_.wait(mutex_);
      if (stopping_) return;
      order = std::move(waiting_.front());
      waiting_.pop_front();
      busy_ = true;
      cancelled_ = false;
      current_ = order.record.offset;
    }
    const bool check = order.kind == static_cast<uint8_t>(OrderKind::kCheck);
    const Result<> made = check ? verify(order) : make(order);
    {
      Lock lock(mutex_);
      busy_ = false;
      if (cancelled_) continue;
    }
    const auto task = [this, alive = std::weak_ptr(alive_), id = order.task, made] {
      if (!alive.expired()) answer_(id, made);
    };
    while (!loop_.post(task)) {
      Lock lock(mutex_);
      if (stopping_) return;
      changed_.wait_for(mutex_, kSubmitRetry);
    }
  }
}

Result<> Copier::make(const Order& order) {
  MC_TRY(const auto source,
         engine_.open_segment(order.from.control, std::min(budget_, kOpen), order.from.generation));
  MC_TRY_(read(order, source));
  return verify(order);
}

Result<> Copier::read(const Order& order, xfer::SegmentHandle source) {
  const ObjectRecord& r = order.record;
  ReplicaLocation here;
  here.offset = r.offset;
  here.bytes = r.first_bytes;
  here.more = r.more;
  std::vector<std::span<std::byte>> parts;
  each_piece(here, r.bytes,
             [&](const Extent& piece) { parts.emplace_back(at_(piece.offset), piece.bytes); });
  std::vector<xfer::Request> requests;
  append_requests(xfer::Op::kRead, parts, r.bytes, order.source, order.source.generation, source,
                  loop_.clock().now() + budget_, requests);
  if (requests.empty()) return {};  // an empty value
  const xfer::BatchId batch = engine_.allocate_batch();
  Result<> moved;
  {
    Lock lock(mutex_);
    if (cancelled_)
      moved = fail(Code::kStale, "cancelled");
    else
      starting_ = true;
  }
  if (moved) {
    moved = engine_.submit(batch, requests);
    {
      Lock lock(mutex_);
      starting_ = false;
      batch_ = batch;
    }
    changed_.notify_all();
    if (moved) moved = engine_.wait(batch, budget_);
    engine_.cancel(batch);  // the copy exceeded its budget
    Lock lock(mutex_);
    batch_.reset();
    while (cancelling_) changed_.wait(mutex_);
  }
  engine_.free_batch(batch);
  return moved;
}

Result<> Copier::verify(const Order& order) const {
  const ObjectRecord& r = order.record;
  Xxh3Stream hash;
  const auto add = [&](uint64_t offset, uint64_t bytes) { hash.update(at_(offset), bytes); };
  add(r.offset, r.more.empty() ? r.bytes : r.first_bytes);
  for (const Extent& piece : r.more) add(piece.offset, piece.bytes);
  if (const uint64_t sum = hash.digest(); sum != r.checksum)
    return fail(Code::kCorrupt, "%s of '%s'%s%s: checksum %016llx, %016llx was put",
                order.from.empty() ? "value" : "copy", escape(r.key).c_str(),
                order.from.empty() ? "" : " from node ", escape(order.from.name).c_str(),
                static_cast<unsigned long long>(sum), static_cast<unsigned long long>(r.checksum));
  return {};
}

}  // namespace mc::store

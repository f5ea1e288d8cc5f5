#include "xfer/transports/tcp/link.h"

#include <utility>

#include "base/hash.h"

namespace mc::xfer::tcp {
namespace {

// Of several requests: no more than of a single one, as both have to be there in the same time.
constexpr uint64_t kInFrame = 1 * kMiB;
static_assert(kInFrame <= kManyBytesMax);

Kind kind_of(const Slice& slice) {
  if (slice.advances_guard) return Kind::kRaise;
  return slice.op == Op::kRead ? Kind::kRead : Kind::kWrite;
}

}  // namespace

Result<> Link::open(const Stream::GiveUp& give_up, Duration* round_trip) {
  next_.reset();
  const std::string advertised =
      peer_->descriptor.node + " advertises the data address " + route_.remote;
  auto connected =
      Stream::connect(route_.remote, clock_, peer_timeout_, give_up, {route_.bind, route_.device});
  if (!connected)
    return fail(connected.error().code,
                "%s: %s (is it running, and is this an address of its that is reached from here? "
                "Its --data sets it)",
                advertised.c_str(), connected.error().what.c_str());
  Stream stream = std::move(*connected);
  if (auto greeted = greet(stream, give_up, round_trip); !greeted) {
    const Error& e = greeted.error();
    if (e.code == Code::kCorrupt)
      return fail(Code::kUnavailable, "%s: something else answers there: its --data sets it",
                  advertised.c_str());
    return fail(e.code, "%s: %s", advertised.c_str(), e.what.c_str());
  }
  Lock lock(mutex_);
  stream_ = std::move(stream);
  return {};
}

Result<> Link::greet(Stream& stream, const Stream::GiveUp& give_up, Duration* round_trip) {
  MC_TRY_(stream.receive(nonce_.data(), nonce_.size(), give_up));
  HelloBody hello = prove(peer_->descriptor.secret.bytes, nonce_);
  Header header = make_header(Kind::kHello, 0, &hello, sizeof hello);
  iovec parts[2] = {{&header, sizeof header}, {&hello, sizeof hello}};
  const Time before = clock_.now();
  MC_TRY_(stream.send(parts, give_up));
  Result<> outcome;
  uint32_t flags = 0;
  MC_TRY_(reply_on(stream, 0, give_up, &outcome, &flags));
  takes_many_ = (flags & kTakesMany) != 0;
  if (round_trip != nullptr) *round_trip = clock_.now() - before;
  return outcome;
}

void Link::close() {
  Stream gone;
  Lock lock(mutex_);
  std::swap(gone, stream_);
}

void Link::shut_down() {
  Lock lock(mutex_);
  stream_.shut_down();
}

void Link::abort() {
  {
    Lock lock(mutex_);
    stream_.discard();
  }
  close();
}

Descriptor Link::body_of(const Asked& asked) const {
  const Slice& slice = *asked.attempt->slice;
  const Piece& p = asked.attempt->piece;
  return {peer_->descriptor.generation.n,
          p.remote,
          p.bytes,
          p.rows,
          p.remote_stride,
          slice.guard.offset,
          slice.guard.expected};
}

void Link::frame(Frame& f, Kind kind, const Asked& asked, bool more) const {
  f.body = body_of(asked);
  f.header = make_header(kind, asked.id, &f.body, sizeof f.body, 0, more ? kMore : 0);
}

// How many of the first may share a frame: then one call receives all their payloads.
size_t Link::in_one_frame(std::span<const Asked> all, bool share) const {
  const Kind kind = kind_of(*all[0].attempt->slice);
  if (!takes_many_ || !(kind == Kind::kWrite || (kind == Kind::kRead && share))) return 1;
  uint64_t bytes = 0;
  size_t n = 0;
  for (; n < std::min(all.size(), kManyMax); ++n) {
    const Slice& slice = *all[n].attempt->slice;
    const Piece& p = all[n].attempt->piece;
    bytes += p.bytes;
    if (kind_of(slice) != kind || slice.wants_digest || slice.guard.offset != Guard::kNone ||
        p.rows != 1 || p.bytes > kInFrame || bytes > kInFrame || all[n].id != all[0].id + n)
      break;
  }
  return std::max<size_t>(n, 1);
}

// Sends frames and payloads in as few calls as possible.
Result<> Link::send(std::span<Asked> all, bool share, const Stream::GiveUp& give_up) {
  constexpr size_t kParts = 256;
  MC_CHECK(all.size() <= kTogether);
  parts_.clear();
  const auto put = [&](void* data, uint64_t bytes) -> Result<> {
    parts_.push_back({data, bytes});
    if (parts_.size() < kParts) return {};
    MC_TRY_(stream_.send(parts_, give_up));
    parts_.clear();
    return {};
  };
  Frame* next = frames_.data();
  Descriptor* bodies = bodies_.data();
  for (size_t i = 0; i < all.size(); ++i) {
    if (const size_t many = in_one_frame(all.subspan(i), share); many > 1) {
      const bool reads = kind_of(*all[i].attempt->slice) == Kind::kRead;
      for (size_t n = 0; n < many; ++n) bodies[n] = body_of(all[i + n]);
      const auto bytes = static_cast<uint32_t>(many * sizeof *bodies);
      next->header = make_header(reads ? Kind::kReadMany : Kind::kWriteMany, all[i].id, bodies,
                                 bytes, 0, i + many < all.size() ? kMore : 0);
      MC_TRY_(put(&next++->header, sizeof(Header)));
      MC_TRY_(put(bodies, bytes));
      for (Asked& asked : all.subspan(i, many)) {
        asked.shares = reads;
        if (!reads) MC_TRY_(put(asked.attempt->local, asked.attempt->piece.bytes));
      }
      bodies += many;
      i += many - 1;
      continue;
    }
    const Slice& slice = *all[i].attempt->slice;
    if (slice.raises_first()) {
      frame(*next, Kind::kRaise, all[i], true);
      MC_TRY_(put(next++, sizeof *next));
    }
    frame(*next, kind_of(slice), all[i], i + 1 < all.size());
    MC_TRY_(put(next++, sizeof *next));
    if (kind_of(slice) != Kind::kWrite) continue;
    const Piece& p = all[i].attempt->piece;
    for (uint64_t row = 0; row < p.rows; ++row)
      MC_TRY_(put(all[i].attempt->local + row * p.local_stride, p.bytes));
  }
  return stream_.send(parts_, give_up);
}

Result<> Link::reply_on(Stream& stream, uint64_t id, const Stream::GiveUp& give_up,
                        Result<>* outcome, uint32_t* flags) {
  Header header;
  if (next_)
    header = *std::exchange(next_, std::nullopt);
  else
    MC_TRY_(stream.receive(&header, sizeof header, give_up));
  MC_TRY_(check_header(header));
  if (header.kind != Kind::kReply || header.id != id || header.body_bytes > kTextMax)
    return fail(Code::kCorrupt, "%s answered a request that was not sent",
                peer_->descriptor.node.c_str());
  if (flags != nullptr) *flags = header.flags;
  std::string text(header.body_bytes, '\0');
  MC_TRY_(stream.receive(text.data(), text.size(), give_up));
  if (header.code != 0)
    *outcome =
        fail(code_from_wire(header.code), "%s: %s", peer_->descriptor.node.c_str(), text.c_str());
  return {};
}

Result<> Link::receive_bytes(const Attempt& attempt, std::span<iovec> behind,
                             const Stream::GiveUp& give_up) {
  const Piece& p = attempt.piece;
  RowWalk rows(attempt.local, p.bytes, p.rows, p.local_stride);
  for (auto parts = rows.next(); !parts.empty(); parts = rows.next()) {
    if (rows.done())
      for (const iovec& part : behind) parts = rows.with(parts, part);
    MC_TRY_(stream_.receive(parts, give_up));
  }
  return {};
}

// Digests piece by piece, while each is still in this CPU's cache. Digesting the whole afterwards
// takes twice as long.
Result<uint64_t> Link::receive_digested(const Attempt& attempt, std::span<iovec> behind,
                                        const Stream::GiveUp& give_up) {
  constexpr uint64_t kInCache = 256 * kKiB;
  std::byte* at = attempt.local;
  uint64_t left = attempt.piece.bytes;
  std::optional<Xxh3Stream> digest;
  for (; left > kInCache; left -= kInCache, at += kInCache) {
    MC_TRY_(stream_.receive(at, kInCache, give_up));
    if (!digest) digest.emplace();
    digest->update(at, kInCache);
  }
  std::vector<iovec> last{{at, left}};
  last.insert(last.end(), behind.begin(), behind.end());
  MC_TRY_(stream_.receive(last, give_up));
  if (!digest) return xxh3(at, left);
  digest->update(at, left);
  return digest->digest();
}

Result<size_t> Link::answered_together(const Stream::GiveUp& give_up) {
  if (!next_) {
    Header header;
    MC_TRY_(stream_.receive(&header, sizeof header, give_up));
    next_ = header;
  }
  MC_TRY_(check_header(*next_));
  return std::max<size_t>(next_->code == 0 ? next_->flags : 0, 1);
}

Result<> Link::receive_many(std::span<const Asked> all, bool more, const Stream::GiveUp& give_up,
                            Result<>* outcome) {
  MC_TRY_(reply_on(stream_, all[0].id, give_up, outcome));
  if (!*outcome) return {};
  Trailer trailer;
  Header next;
  parts_.clear();
  for (const Asked& asked : all)
    parts_.push_back({asked.attempt->local, asked.attempt->piece.bytes});
  parts_.push_back({&trailer, sizeof trailer});
  if (more) parts_.push_back({&next, sizeof next});
  MC_TRY_(stream_.receive(parts_, give_up));
  if (more) next_ = next;
  *outcome = ended_well(trailer);
  return {};
}

bool Link::has_answer(const Asked& asked) const {
  const Slice& slice = *asked.attempt->slice;
  if (next_ || slice.op == Op::kRead) return false;
  return stream_.ahead() >= (slice.raises_first() ? 2 : 1) * sizeof(Header);
}

bool Link::answers_by(const Asked& asked, Time until) {
  size_t bytes = next_ ? 0 : sizeof(Header);
  if (!stream_.has_by(bytes, until)) return false;
  Header header;
  if (next_) header = *next_;
  const bool known = next_ || stream_.peek(&header, sizeof header);
  if (known && (!check_header(header) || header.body_bytes > kTextMax)) return true;  // refused
  if (known) bytes += header.body_bytes;
  const Slice& slice = *asked.attempt->slice;
  if ((!known || header.code == 0) && slice.op == Op::kRead)
    bytes += asked.attempt->piece.total() + sizeof(Trailer);
  if (slice.raises_first()) bytes += sizeof(Header);  // what a refusal says comes with it
  return stream_.has_by(bytes, until);
}

Result<> Link::receive(const Asked& asked, bool more, const Stream::GiveUp& give_up,
                       Answer* answer) {
  const Attempt& attempt = *asked.attempt;
  MC_TRY_(reply_on(stream_, asked.id, give_up, &answer->outcome));
  if (attempt.slice->raises_first()) {  // if the word could not be raised, that says why
    Result<> written;
    MC_TRY_(reply_on(stream_, asked.id, give_up, &written));
    if (answer->outcome) answer->outcome = std::move(written);
    return {};
  }
  if (!answer->outcome || attempt.slice->op != Op::kRead) return {};
  Trailer trailer;  // it comes with the last bytes, and the next answer behind that
  Header next;
  iovec behind[2] = {{&trailer, sizeof trailer}, {&next, sizeof next}};
  const auto after = std::span(behind).first(more ? 2 : 1);
  stream_.expect_short(more && attempt.piece.total() <= Stream::kShortRun);
  if (attempt.slice->wants_digest && attempt.piece.rows == 1 &&
      attempt.piece.bytes == attempt.slice->piece.bytes) {
    MC_TRY(answer->digest, receive_digested(attempt, after, give_up));
  } else {
    MC_TRY_(receive_bytes(attempt, after, give_up));
  }
  if (more) next_ = next;
  answer->outcome = ended_well(trailer);
  return {};
}

Result<> Link::ended_well(const Trailer& trailer) const {
  if (trailer.code == 0) return {};
  return fail(code_from_wire(trailer.code), "%s: the bytes %s", peer_->descriptor.node.c_str(),
              code_from_wire(trailer.code) == Code::kStale ? "changed owner while being read"
                                                           : "could not all be read there");
}

Result<> Link::retire(const Nonce& nonce, const Stream::GiveUp& give_up) {
  Nonce other = nonce;
  Header header = make_header(Kind::kRetire, 0, &other, sizeof other);
  iovec parts[2] = {{&header, sizeof header}, {&other, sizeof other}};
  MC_TRY_(stream_.send(parts, give_up));
  Result<> outcome;
  MC_TRY_(reply_on(stream_, 0, give_up, &outcome));
  return outcome;
}

}  // namespace mc::xfer::tcp

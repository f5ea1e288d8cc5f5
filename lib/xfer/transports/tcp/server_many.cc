// Serves frames of several requests: their payloads are received, or sent, in one call, where all
// of them are in memory.
#include <algorithm>

#include "xfer/core/request.h"
#include "xfer/transports/tcp/server.h"
#include "xfer/transports/tcp/tsan_ignore_scope.h"

namespace mc::xfer::tcp {
namespace {
constexpr uint64_t kRefused = 256 * kKiB;  // received at a time of what goes nowhere
}

// The bodies. The first may have come with the frame before. Errors: kCorrupt.
Result<> Server::receive_bodies(Connection& c, const Header& header, bool first_is_here) {
  const size_t n = header.body_bytes / sizeof(Descriptor);
  if (n == 0 || n > kManyMax || header.body_bytes % sizeof(Descriptor) != 0)
    return fail(Code::kCorrupt, "%u bytes of bodies of requests", header.body_bytes);
  c.many.resize(n);
  if (first_is_here) c.many[0] = c.next.body;
  const size_t here = first_is_here ? 1 : 0;
  // Answers that hold memory do not wait for bodies that are not here yet.
  if (c.answers.pins() && c.stream.ahead() < (n - here) * sizeof(Descriptor))
    MC_TRY_(send_answers(c));
  MC_TRY_(
      c.stream.receive(c.many.data() + here, (n - here) * sizeof(Descriptor), unless_stopping()));
  if (!check_body(header, c.many.data()))
    return fail(Code::kCorrupt, "request body fails its check");
  return {};
}

// From the first byte of any of them to the last. Errors: kCorrupt.
Result<Descriptor> Server::range_of(std::span<const Descriptor> many) {
  uint64_t from = UINT64_MAX, to = 0, bytes = 0;
  for (const Descriptor& d : many) {
    uint64_t end = 0;
    if (d.rows != 1 || d.guard_offset != Guard::kNone || d.bytes == 0 ||
        d.bytes > kManyBytesMax - bytes || __builtin_add_overflow(d.offset, d.bytes, &end))
      return fail(Code::kCorrupt, "requests in one frame: want single rows without guards");
    bytes += d.bytes;
    from = std::min(from, d.offset);
    to = std::max(to, end);
  }
  Descriptor range;
  range.offset = from;
  range.bytes = to - from;
  range.rows = 1;
  return range;
}

Result<> Server::write_many(Connection& c, const Header& header) {
  const std::span<const Descriptor> all = c.many;
  MC_TRY(const Descriptor covers, range_of(all));
  const WriteRange range(c, covers, all);
  std::vector<Result<BufferPtr>> buffers;
  std::vector<iovec> parts;
  std::vector<std::byte> refused;  // bytes that go nowhere
  size_t answered = 0;
  const auto give_up = [&]() -> Result<> {
    MC_TRY_(unless_stopping()());
    for (const auto& b : buffers)
      if (b && (*b)->withdrawn.load(std::memory_order_acquire))
        return fail(Code::kUnavailable, "the memory was withdrawn meanwhile");
    return {};
  };
  // Receives what is due and answers it. The last answer alone may have to leave now.
  const auto receive = [&](bool last) -> Result<> {
    c.has_next = last && (header.flags & kMore) != 0;
    if (c.has_next) parts.push_back({&c.next, sizeof c.next});
    {
      const TsanIgnoreScope order;
      MC_TRY_(c.stream.receive(parts, give_up));
    }
    parts.clear();
    for (; answered < buffers.size(); ++answered) {
      Header one = header;
      one.id += answered;
      if (answered + 1 < all.size()) one.flags |= kMore;
      const auto& b = buffers[answered];
      MC_TRY_(answer(c, one, b ? Result<>() : Result<>(fail(b.error()))));
    }
    return {};
  };
  for (const Descriptor& d : all) {
    std::byte* first = nullptr;
    const std::byte* guard = nullptr;
    auto buffer = admit(d, true, &first, &guard);
    if (buffer && (*buffer)->backend != nullptr) {
      MC_TRY_(receive(false));
      MC_TRY_(send_answers(c));
      Header one = header;
      one.id += answered++;
      MC_TRY_(write_backed(c.stream, one, d, *buffer));
      c.stream.receive_by(clock_.now() + config_.frame_max);  // its disk may be slow
      buffers.push_back(std::move(buffer));
      continue;
    }
    if (buffer) {
      parts.push_back({first, d.bytes});
    } else {
      refused.resize(kRefused);
      for (uint64_t at = 0; at < d.bytes; at += kRefused)
        parts.push_back({refused.data(), std::min(d.bytes - at, kRefused)});
    }
    buffers.push_back(std::move(buffer));
  }
  return receive(true);
}

Result<> Server::read_many(Connection& c, const Header& header) {
  MC_TRY_(range_of(c.many));
  struct Found {
    BufferPtr buffer;
    iovec part;
  };
  std::vector<Found> found;
  for (const Descriptor& d : c.many) {
    std::byte* first = nullptr;
    const std::byte* guard = nullptr;
    auto buffer = admit(d, false, &first, &guard);
    if (!buffer || (*buffer)->backend != nullptr) break;
    found.push_back({std::move(*buffer), {first, d.bytes}});
  }
  if (found.size() < c.many.size()) {  // each by itself
    for (size_t i = 0; i < c.many.size(); ++i) {
      Header one = header;
      one.id += i;
      MC_TRY_(read(c, one, c.many[i]));
    }
    return {};
  }
  if (!c.answers.room_for(found.size())) MC_TRY_(send_answers(c));
  c.answers.add(
      make_header(Kind::kReply, header.id, nullptr, 0, 0, static_cast<uint32_t>(found.size())));
  for (Found& f : found) c.answers.add({&f.part, 1}, std::move(f.buffer));
  c.answers.add(Trailer{});
  const bool more = (header.flags & kMore) != 0 && c.stream.ahead() >= sizeof(Frame);
  return more && c.answers.room_for(kManyMax) ? Result<>{} : send_answers(c);
}

}  // namespace mc::xfer::tcp

// The data plane spoken by hand, by a client that knows the secret and means no good: each lie
// costs it an error or the connection, and the owner nothing.
#include <array>
#include <cstring>

#include "io/limits.h"
#include "tests/conformance/pair.h"
#include "xfer/core/planner.h"
#include "xfer/transports/tcp/frame.h"
#include "xfer/transports/tcp/stream.h"

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::tcp;
using namespace std::chrono_literals;

namespace {

const auto kNever = []() -> Result<> { return {}; };

class RawClient {
 public:
  explicit RawClient(const SegmentDescriptor& segment) : generation_(segment.generation.n) {
    auto stream = Stream::connect(segment.tcp.front(), kClock, 1s, kNever);
    REQUIRE(stream.has_value());
    stream_ = std::move(*stream);
    REQUIRE(stream_.receive(nonce_.data(), nonce_.size(), kNever).has_value());
    const HelloBody hello = prove(segment.secret.bytes, nonce_);
    send(make_header(Kind::kHello, 0, &hello, sizeof hello), &hello, sizeof hello);
    REQUIRE(reply() == 0);
  }
  const Nonce& nonce() const { return nonce_; }
  Descriptor descriptor(uint64_t offset, uint64_t bytes) const {
    Descriptor d;
    d.generation = generation_;
    d.offset = offset;
    d.bytes = bytes;
    d.rows = 1;
    d.guard_offset = Guard::kNone;
    return d;
  }
  void send(const Header& header, const void* body, size_t n) {
    CHECK(stream_.send(&header, sizeof header, kNever).has_value());
    CHECK(stream_.send(body, n, kNever).has_value());
  }
  void send_all(const void* data, size_t n) { CHECK(stream_.send(data, n, kNever).has_value()); }
  std::vector<std::byte> take(size_t n) {
    std::vector<std::byte> bytes(n);
    CHECK(stream_.receive(bytes.data(), n, kNever).has_value());
    return bytes;
  }
  void ask(Kind kind, const Descriptor& d) {
    send(make_header(kind, 1, &d, sizeof d), &d, sizeof d);
  }
  bool payload(const std::vector<std::byte>& bytes) {
    return stream_.send(bytes.data(), bytes.size(), kNever).has_value();
  }
  // The code of the next reply; -1 when the connection was closed instead.
  int reply() {
    Header h;
    if (!stream_.receive(&h, sizeof h, kNever) || !check_header(h)) return -1;
    CHECK(h.kind == Kind::kReply);
    std::string text(h.body_bytes, '\0');
    if (!stream_.receive(text.data(), text.size(), kNever)) return -1;
    return h.code;
  }
  bool closed() {
    std::byte more;
    const auto received = stream_.receive(&more, 1, kNever);
    return !received && received.error().code == Code::kUnavailable;  // not merely silent
  }

 private:
  Stream stream_;
  Nonce nonce_{};
  uint64_t generation_;
};

int code(Code c) { return static_cast<int>(c); }

}  // namespace

TEST_SUITE("xfer/hostile") {
  // F32: an owner that frees buffers all the time made reads of its others fail.
  TEST_CASE("memory that stays is served, whatever was withdrawn beside it") {
    Pair pair("tcp", 256 * kKiB);
    auto other = pair.owner->allocate(4096, true);
    REQUIRE(other.has_value());
    RawClient raw(pair.owner->describe());
    const uint64_t gone = other->offset();
    *other = Memory();
    raw.ask(Kind::kRead, raw.descriptor(gone, 11));
    CHECK(raw.reply() == code(Code::kStale));
    raw.ask(Kind::kRead, raw.descriptor(pair.remote.offset(), 11));
    CHECK(raw.reply() == 0);
  }

  TEST_CASE("requests for forbidden memory get a typed error, and the connection stays open") {
    Pair pair("tcp", 256 * kKiB);
    auto sealed = pair.owner->allocate(4096, false);
    REQUIRE(sealed.has_value());
    RawClient raw(pair.owner->describe());
    const uint64_t base = pair.remote.offset();
    for (const Kind kind : {Kind::kRead, Kind::kWrite}) {
      Descriptor d = raw.descriptor(base + 256 * kKiB - 10, 11);
      const std::vector<std::byte> bytes(11);
      raw.ask(kind, d);
      if (kind == Kind::kWrite) CHECK(raw.payload(bytes));
      CHECK(raw.reply() == code(Code::kInvalid));
      d.generation += 1;
      raw.ask(kind, d);
      if (kind == Kind::kWrite) CHECK(raw.payload(bytes));
      CHECK(raw.reply() == code(Code::kStale));
      d = raw.descriptor(base + 64, 11);
      d.guard_offset = base;
      d.guard_value = 77;  // the word holds 0
      raw.ask(kind, d);
      if (kind == Kind::kWrite) CHECK(raw.payload(bytes));
      CHECK(raw.reply() == code(Code::kStale));
      d.guard_offset = base + 4;
      raw.ask(kind, d);
      if (kind == Kind::kWrite) CHECK(raw.payload(bytes));
      CHECK(raw.reply() == code(Code::kInvalid));
    }
    raw.ask(Kind::kWrite, raw.descriptor(sealed->offset(), 16));
    CHECK(raw.payload(std::vector<std::byte>(16, std::byte{1})));
    CHECK(raw.reply() == code(Code::kDenied));
    CHECK(sealed->data()[0] == std::byte{0});
    Descriptor wraps = raw.descriptor(base + 10, UINT64_MAX - 5);
    raw.ask(Kind::kRead, wraps);
    CHECK(raw.reply() == code(Code::kInvalid));
    wraps = raw.descriptor(base, 1 << 20);
    wraps.rows = uint64_t{1} << 63;
    wraps.stride = 2;
    raw.ask(Kind::kRead, wraps);
    CHECK(raw.reply() == code(Code::kInvalid));
    wraps = raw.descriptor(base, 1 << 10);  // all rows in one place, their sum 0
    wraps.rows = uint64_t{1} << 54;
    raw.ask(Kind::kRead, wraps);
    CHECK(raw.reply() == code(Code::kInvalid));
    wraps.rows = 0;
    raw.ask(Kind::kRead, wraps);
    CHECK(raw.reply() == code(Code::kInvalid));
    Descriptor rows =
        raw.descriptor(base, 0);    // F19: all checks of ranges pass, and 2^62 rows would
    rows.rows = uint64_t{1} << 62;  // be walked
    rows.stride = 0;
    for (const Kind kind : {Kind::kRead, Kind::kWrite}) {
      raw.ask(kind, rows);
      CHECK(raw.reply() == code(Code::kInvalid));
    }
    rows.rows = 1;
    raw.ask(Kind::kRead, rows);
    CHECK(raw.reply() == code(Code::kInvalid));
    rows.bytes = rows.stride = 1;
    rows.rows = kRowsMax + 1;
    raw.ask(Kind::kRead, rows);
    CHECK(raw.reply() == code(Code::kInvalid));
    raw.ask(Kind::kRaise, raw.descriptor(0, 0));
    CHECK(raw.reply() == code(Code::kInvalid));  // no guard named
    raw.ask(Kind::kRead, raw.descriptor(base, 1));
    CHECK(raw.reply() == 0);
  }

  TEST_CASE("frames that lie about themselves end the connection, and only that") {
    Pair pair("tcp", 64 * kKiB);
    const SegmentDescriptor segment = pair.owner->describe();
    const auto ended_by = [&](auto&& lie) {
      RawClient raw(segment);
      Descriptor d = raw.descriptor(pair.remote.offset(), 8);
      Header h = make_header(Kind::kRead, 1, &d, sizeof d);
      lie(h, d);
      h.check = static_cast<uint32_t>(xxh3(&h, offsetof(Header, check)));
      raw.send(h, &d, sizeof d);
      return raw.closed();
    };
    CHECK(ended_by([](Header& h, Descriptor&) { h.magic += 1; }));
    CHECK(ended_by([](Header& h, Descriptor&) { h.version = 9; }));
    CHECK(ended_by([](Header& h, Descriptor&) { h.kind = static_cast<Kind>(99); }));
    CHECK(ended_by([](Header& h, Descriptor&) { h.kind = Kind::kHello; }));
    CHECK(ended_by([](Header& h, Descriptor&) { h.kind = Kind::kReply; }));
    CHECK(ended_by([](Header& h, Descriptor&) { h.kind = Kind::kRetire; }));
    CHECK(ended_by([](Header& h, Descriptor&) { h.body_bytes = UINT32_MAX; }));
    CHECK(ended_by([](Header& h, Descriptor&) { h.body_bytes = 55; }));
    CHECK(ended_by([](Header&, Descriptor& d) { d.bytes = 9; }));  // not what was checked
    CHECK(ended_by([](Header& h, Descriptor& d) {  // a payload longer than all numbers
      h.kind = Kind::kWrite;
      d.bytes = d.rows = uint64_t{1} << 40;
      h.body_check = static_cast<uint32_t>(xxh3(&d, sizeof d));
    }));
    std::vector<std::byte> local(1024);
    CHECK(pair.engine().transfer_sync(pair.request(Op::kRead, local), 1s).has_value());
  }

  TEST_CASE("of writes sent together each is answered, the refused one in its place") {
    Pair pair("tcp", 64 * kKiB);
    RawClient raw(pair.owner->describe());
    const std::vector<std::byte> bytes(8, std::byte{7});
    const uint64_t first = pair.remote.offset(), none = first + kGiB;
    for (const uint64_t at : {first, none, first + 64}) {
      const Descriptor d = raw.descriptor(at, bytes.size());
      const uint32_t flags = at == first + 64 ? 0 : kMore;
      raw.send(make_header(Kind::kWrite, 1, &d, sizeof d, 0, flags), &d, sizeof d);
      CHECK(raw.payload(bytes));
    }
    CHECK(raw.reply() == 0);
    CHECK(raw.reply() > 0);
    CHECK(raw.reply() == 0);
    for (const size_t at : {size_t{0}, size_t{64}})
      CHECK(std::memcmp(pair.remote.data() + at, bytes.data(), bytes.size()) == 0);
    CHECK(pair.remote.data()[8] == std::byte{0});
  }

  TEST_CASE("of reads sent together each is answered in its place, whatever becomes of it") {
    Pair pair("tcp", 64 * kKiB);
    RawClient raw(pair.owner->describe());
    for (size_t i = 0; i < 64 * kKiB; ++i)
      pair.remote.data()[i] = static_cast<std::byte>(i * 2654435761U >> 24);
    constexpr uint64_t kGuardAt = 32 * kKiB;
    const uint64_t first = pair.remote.offset(), guard = 9;
    std::memcpy(pair.remote.data() + kGuardAt, &guard, sizeof guard);
    const auto plain = [&](uint64_t at, uint64_t bytes) {
      return raw.descriptor(first + at, bytes);
    };
    const auto guarded = [&](uint64_t at, uint64_t bytes, uint64_t value) {
      Descriptor d = plain(at, bytes);
      d.guard_offset = first + kGuardAt;
      d.guard_value = value;
      return d;
    };
    Descriptor rows = plain(64, 8);
    rows.rows = 300;
    rows.stride = 24;
    const std::vector<Descriptor> asked{
        plain(0, 8000), plain(kGiB, 8),       plain(100, 8),     guarded(7, 99, 9),
        rows,           guarded(0, 16000, 9), guarded(7, 99, 8), plain(5, 20000),
        rows,           guarded(1, 30000, 9), plain(6000, 3000)};
    std::vector<Frame> frames;
    for (size_t i = 0; i < asked.size(); ++i) {
      Frame f;
      f.body = asked[i];
      const uint32_t more = i + 1 < asked.size() ? kMore : 0;
      f.header = make_header(Kind::kRead, i, &f.body, sizeof f.body, 0, more);
      frames.push_back(f);
    }
    raw.send_all(frames.data(), frames.size() * sizeof(Frame));
    for (const Descriptor& d : asked) {
      const bool refused = &d == &asked[1] || &d == &asked[6];
      CHECK((raw.reply() > 0) == refused);
      for (uint64_t row = 0; row < d.rows && !refused; ++row)
        CHECK(std::memcmp(raw.take(d.bytes).data(),
                          pair.remote.data() + (d.offset - first) + row * d.stride, d.bytes) == 0);
      if (!refused) CHECK(raw.take(sizeof(Trailer)) == std::vector<std::byte>(sizeof(Trailer)));
    }
  }

  TEST_CASE("of the writes of one frame each is answered, and a refused one moves nothing") {
    Pair pair("tcp", 64 * kKiB);
    RawClient raw(pair.owner->describe());
    const uint64_t first = pair.remote.offset(), none = first + kGiB;
    std::vector<Descriptor> all;
    std::vector<std::byte> payload;
    for (const uint64_t at : {first, none, first + 64}) {
      all.push_back(raw.descriptor(at, 8));
      payload.insert(payload.end(), 8, static_cast<std::byte>(all.size()));
    }
    const auto bytes = static_cast<uint32_t>(all.size() * sizeof all[0]);
    for (const uint32_t flags : {0u, kMore}) {  // alone, and followed by a single write
      std::memset(pair.remote.data(), 0, 128);
      raw.send(make_header(Kind::kWriteMany, 5, all.data(), bytes, 0, flags), all.data(), bytes);
      CHECK(raw.payload(payload));
      if (flags != 0) raw.ask(Kind::kWrite, raw.descriptor(first + 96, 8));
      if (flags != 0) CHECK(raw.payload(std::vector<std::byte>(8, std::byte{9})));
      for (uint64_t i = 0; i < all.size(); ++i) {
        const auto raw_header = raw.take(sizeof(Header));
        Header h;
        std::memcpy(&h, raw_header.data(), sizeof h);
        CHECK(check_header(h).has_value());
        CHECK(h.id == 5 + i);
        CHECK(h.code == (i == 1 ? code(Code::kInvalid) : 0));
        raw.take(h.body_bytes);
      }
      if (flags != 0) CHECK(raw.reply() == 0);
      CHECK(pair.remote.data()[0] == std::byte{1});
      CHECK(pair.remote.data()[8] == std::byte{0});
      CHECK(pair.remote.data()[64] == std::byte{3});
      CHECK(pair.remote.data()[96] == static_cast<std::byte>(flags != 0 ? 9 : 0));
    }
  }

  TEST_CASE("the reads of one frame are answered together, or each by itself if one is refused") {
    Pair pair("tcp", 64 * kKiB);
    RawClient raw(pair.owner->describe());
    const uint64_t first = pair.remote.offset();
    std::memset(pair.remote.data(), 1, 8);
    std::memset(pair.remote.data() + 64, 2, 8);
    const auto header = [&] {
      const auto bytes = raw.take(sizeof(Header));
      Header h;
      std::memcpy(&h, bytes.data(), sizeof h);
      CHECK(check_header(h).has_value());
      return h;
    };
    for (const uint64_t second : {first + 64, first + kGiB}) {
      const std::vector<Descriptor> all{raw.descriptor(first, 8), raw.descriptor(second, 8)};
      const auto bytes = static_cast<uint32_t>(all.size() * sizeof all[0]);
      raw.send(make_header(Kind::kReadMany, 5, all.data(), bytes), all.data(), bytes);
      const bool good = second == first + 64;
      Header h = header();
      CHECK(h.id == 5);
      CHECK(h.flags == (good ? 2 : 0));
      CHECK(raw.take(8) == std::vector<std::byte>(8, std::byte{1}));
      if (good) CHECK(raw.take(8) == std::vector<std::byte>(8, std::byte{2}));
      CHECK(raw.take(sizeof(Trailer)) == std::vector<std::byte>(sizeof(Trailer)));
      if (good) continue;
      h = header();
      CHECK(h.id == 6);
      CHECK(h.code == code(Code::kInvalid));
      raw.take(h.body_bytes);
    }
  }

  TEST_CASE("a frame of several that lies about itself ends the connection") {
    Pair pair("tcp", 64 * kKiB);
    const SegmentDescriptor segment = pair.owner->describe();
    const auto ended_by = [&](size_t n, auto&& lie) {
      bool ended = true;
      for (const Kind kind : {Kind::kWriteMany, Kind::kReadMany}) {
        RawClient raw(segment);
        std::vector<Descriptor> all(n, raw.descriptor(pair.remote.offset(), 8));
        auto bytes = static_cast<uint32_t>(n * sizeof(Descriptor));
        lie(all, bytes);
        const Header h = make_header(kind, 1, all.data(), bytes);
        raw.send(h, all.data(), bytes);
        ended = raw.closed() && ended;
      }
      return ended;
    };
    const auto nothing = [](auto&, uint32_t&) {};
    CHECK(ended_by(kManyMax + 1, nothing));
    CHECK(ended_by(0, nothing));
    CHECK(ended_by(2, [](auto&, uint32_t& bytes) { bytes -= 1; }));
    CHECK(ended_by(2, [](auto& all, uint32_t&) { all[1].rows = 2; }));
    CHECK(ended_by(2, [](auto& all, uint32_t&) { all[1].bytes = 0; }));
    CHECK(ended_by(2, [](auto& all, uint32_t&) { all[1].bytes = UINT64_MAX; }));
    CHECK(ended_by(2, [](auto& all, uint32_t&) { all[1].offset = UINT64_MAX - 3; }));
    CHECK(ended_by(2, [](auto& all, uint32_t&) { all[0].guard_offset = all[0].offset; }));
    CHECK(ended_by(2, [](auto& all, uint32_t&) { all[0].bytes = all[1].bytes = kManyBytesMax; }));
    std::vector<std::byte> local(1024);
    CHECK(pair.engine().transfer_sync(pair.request(Op::kRead, local), 1s).has_value());
  }

  TEST_CASE("what follows a write of several is checked as any frame is") {
    Pair pair("tcp", 64 * kKiB);
    const SegmentDescriptor segment = pair.owner->describe();
    const std::vector<std::byte> bytes(8, std::byte{7});
    const auto ended_by = [&](auto&& lie) {
      RawClient raw(segment);
      const Descriptor d = raw.descriptor(pair.remote.offset(), bytes.size());
      raw.send(make_header(Kind::kWrite, 1, &d, sizeof d, 0, kMore), &d, sizeof d);
      CHECK(raw.payload(bytes));
      Frame next{make_header(Kind::kWrite, 2, &d, sizeof d), d};
      lie(next);
      raw.send(next.header, &next.body, sizeof next.body);
      return raw.closed();
    };
    CHECK(ended_by([](Frame& f) { f.header.magic += 1; }));
    CHECK(ended_by([](Frame& f) { f.body.bytes = 9; }));
    CHECK(ended_by(
        [](Frame& f) { f.header = make_header(Kind::kRetire, 2, &f.body, sizeof f.body); }));
  }

  // F17: they know no secret, and each gets on with its hello in time, if a limit begins anew with
  // each byte.
  TEST_CASE("1,100 unknown peers that drip their hellos stop no transfer") {
    Pair pair("tcp", 64 * kKiB);
    const SegmentDescriptor segment = pair.owner->describe();
    (void)io::raise_open_files(4096);
    constexpr size_t kPeers = 1100 / kSlow;
    std::vector<Stream> unknown;
    std::vector<std::byte> local(1024);
    for (size_t i = 0; i < kPeers; ++i) {
      auto stream = Stream::connect(segment.tcp.front(), kClock, 5s, kNever);
      REQUIRE(stream.has_value());
      unknown.push_back(std::move(*stream));
      (void)unknown.back().send("M", 1, kNever);
      if (i % 100 == 0)
        CHECK(pair.engine().transfer_sync(pair.request(Op::kRead, local), 10s * kSlow).has_value());
    }
    for (Stream& stream : unknown) (void)stream.send("C", 1, kNever);
    Pair other("tcp", 64 * kKiB);  // and connections that are made now
    CHECK(other.engine().transfer_sync(other.request(Op::kRead, local), 10s * kSlow).has_value());
    const RawClient fresh(segment);
  }

  TEST_CASE("a connection that goes silent in a frame is closed") {
    Pair pair("tcp", 64 * kKiB);
    RawClient raw(pair.owner->describe());
    raw.ask(Kind::kWrite, raw.descriptor(pair.remote.offset(), 1000));
    CHECK(raw.payload(std::vector<std::byte>(10)));
    const Time before = kClock.now();
    while (!raw.closed()) REQUIRE(kClock.now() - before < 10s * kSlow);  // each try waits a second
  }

  TEST_CASE("F1, F133: once a range is fenced, nothing of a frame that drips into it is applied") {
    Pair pair("tcp", 64 * kKiB);
    RawClient late(pair.owner->describe());
    const std::vector<std::byte> half(1000, std::byte{7});
    constexpr uint64_t kGuardAt = 32 * kKiB;
    Descriptor d = late.descriptor(pair.remote.offset(), 2000);
    d.guard_offset = pair.remote.offset() + kGuardAt;
    d.guard_value = 0;
    late.ask(Kind::kWrite, d);
    CHECK(late.payload(half));
    REQUIRE(pair.engine().advance_guard(pair.segment, d.guard_offset, 5, 5s * kSlow).has_value());
    FencedRange range{pair.remote.offset(), 2000};
    const Time before = kClock.now();
    while (!pair.owner->fence({&range, 1})) REQUIRE(kClock.now() - before < 10s * kSlow);
    std::memset(pair.remote.data(), 0, 2000);  // the next owner's bytes
    (void)late.payload(half);
    CHECK(digest(pair.remote.bytes().first(2000)) == digest(std::vector<std::byte>(2000)));
    std::vector<std::byte> local(1024);  // the owner serves others
    CHECK(pair.engine().transfer_sync(pair.request(Op::kRead, local), 5s).has_value());
  }

  TEST_CASE("a fence between the writes of a frame that drips waits for none of them") {
    Pair pair("tcp", 64 * kKiB);
    RawClient slow(pair.owner->describe());
    const uint64_t begin = pair.remote.offset();
    const std::array<Descriptor, 2> ends{slow.descriptor(begin, 1000),
                                         slow.descriptor(begin + 48 * kKiB, 1000)};
    slow.send(make_header(Kind::kWriteMany, 1, ends.data(), sizeof ends), ends.data(), sizeof ends);
    CHECK(slow.payload(std::vector<std::byte>(500, std::byte{7})));
    const Time before = kClock.now();
    const auto* first = reinterpret_cast<const unsigned char*>(pair.remote.data());
    while (__atomic_load_n(first + 499, __ATOMIC_RELAXED) != 7)
      REQUIRE(kClock.now() - before < 10s * kSlow);
    FencedRange between{begin + 16 * kKiB, 16 * kKiB};
    CHECK(pair.owner->fence({&between, 1}));
    CHECK(slow.payload(std::vector<std::byte>(1500, std::byte{7})));
    CHECK(slow.reply() == 0);  // its connection is as it was
    CHECK(slow.reply() == 0);
  }

  TEST_CASE("once a connection is retired, no byte sent over it is applied any more") {
    Pair pair("tcp", 64 * kKiB);
    RawClient old(pair.owner->describe()), fresh(pair.owner->describe());
    const std::vector<std::byte> half(1000, std::byte{7});
    old.ask(Kind::kWrite, old.descriptor(pair.remote.offset(), 2000));
    CHECK(old.payload(half));
    fresh.send(make_header(Kind::kRetire, 2, &old.nonce(), sizeof(Nonce)), &old.nonce(),
               sizeof(Nonce));
    CHECK(fresh.reply() == 0);
    std::memset(pair.remote.data(), 0, 2000);  // the next owner's bytes
    (void)old.payload(half);
    CHECK(old.closed());
    CHECK(digest(pair.remote.bytes().first(2000)) == digest(std::vector<std::byte>(2000)));
    // Retiring it again, or one nobody knows, is answered all the same.
    fresh.send(make_header(Kind::kRetire, 3, &old.nonce(), sizeof(Nonce)), &old.nonce(),
               sizeof(Nonce));
    CHECK(fresh.reply() == 0);
  }
}

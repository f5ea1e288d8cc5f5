// Checks of contents: compares the result of each kind of copy with the bytes that the host
// expects.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/random.h"
#include "base/units.h"
#include "bench/gpu_check/check.h"
#include "device/named.h"
#include "device/stand_in.h"

namespace mc::gpu_check {
namespace {

using device::Block;
using device::Memory;
using device::Stream;

Result<> put(Stream& s, std::byte* to, std::span<const std::byte> from) {
  return finish(s, [&] { return s.copy(to, from.data(), from.size()); });
}
Result<std::vector<std::byte>> get(Stream& s, const std::byte* from, size_t bytes) {
  std::vector<std::byte> out(bytes);
  MC_TRY_(finish(s, [&] { return s.copy(out.data(), from, bytes); }));
  return out;
}

Result<> copies(const Bench& b) {
  MC_TRY(const Memory memory, b.device->allocate(64 * kMiB));
  MC_TRY(const Memory pinned, b.device->allocate_host(16 * kMiB));
  MC_TRY(const auto s, b.device->open_stream());
  for (const size_t bytes : {1ul, 3ul, 4096ul, 65'537ul, 16ul << 20})
    for (const size_t at : {0ul, 1ul, 511ul}) {
      const auto want = noise(bytes, bytes + at);
      MC_TRY_(put(*s, memory.data() + at, want));
      MC_TRY_(finish(
          *s, [&] { return s->copy(memory.data() + 32 * kMiB + at, memory.data() + at, bytes); }));
      MC_TRY(const auto got, get(*s, memory.data() + 32 * kMiB + at, bytes));
      MC_TRY_(same(got, want, "host to device to device to host"));
      MC_TRY_(finish(*s, [&] { return s->copy(pinned.data(), memory.data() + at, bytes); }));
      MC_TRY_(same(pinned.bytes.first(bytes), want, "device to pinned memory"));
    }
  return {};
}

// Blocks of many sizes at all alignments, in any order, to the device and to pinned memory.
Result<> blocks(const Bench& b) {
  constexpr size_t kBlocks = 6000, kRoom = 20'000;
  MC_TRY(const Memory from, b.device->allocate(kBlocks * kRoom));
  MC_TRY(const Memory to, b.device->allocate(kBlocks * kRoom));
  MC_TRY(const Memory pinned, b.device->allocate_host(kBlocks * kRoom));
  MC_TRY(const auto s, b.device->open_stream());
  const auto want = noise(kBlocks * kRoom, 1);
  MC_TRY_(put(*s, from.data(), want));
  for (std::byte* const target : {to.data(), pinned.data()}) {
    Random random(2);
    std::vector<Block> list;
    for (size_t i = 0; i < kBlocks; ++i) {
      const size_t bytes = random.next() % 17'000 + 1, wide = i % 3 == 0 ? 16 : i % 3 == 1 ? 4 : 1;
      const size_t n = std::max(wide, bytes / wide * wide);
      list.push_back({target + i * kRoom + random.next() % 64 * wide,
                      from.data() + i * 7919 % kBlocks * kRoom + random.next() % 64 * wide, n});
    }
    MC_TRY_(put(*s, to.data(), std::vector<std::byte>(kBlocks * kRoom)));
    std::memset(pinned.data(), 0, pinned.size());
    MC_TRY_(finish(*s, [&] { return s->copy_blocks(list); }));
    std::vector<std::byte> expected(kBlocks * kRoom);
    for (const Block& x : list)
      std::memcpy(&expected[static_cast<size_t>(x.to - target)],
                  &want[static_cast<size_t>(x.from - from.data())], x.bytes);
    MC_TRY(const auto got, get(*s, target, expected.size()));
    MC_TRY_(same(got, expected,
                 target == to.data() ? "gathered on the device" : "gathered to the host"));
  }
  return {};
}

Result<> rows(const Bench& b) {
  MC_TRY(const Memory memory, b.device->allocate(64 * kMiB));
  MC_TRY(const auto s, b.device->open_stream());
  const auto want = noise(32 * kMiB, 3);
  MC_TRY_(put(*s, memory.data(), want));
  struct Shape {
    uint64_t bytes, stride, rows;
  };
  for (const Shape& x : {Shape{128 * 1024, 200'000, 100}, Shape{1001, 1003, 30'000},
                         Shape{4, 100, 200'000}, Shape{16 << 20, 16 << 20, 2}}) {
    const uint64_t bytes = x.bytes, stride = x.stride, rows = x.rows;
    std::byte* const dense = memory.data() + 32 * kMiB;
    MC_TRY_(finish(*s, [&] {
      return s->copy_rows({dense, memory.data(), bytes, stride, bytes, rows});
    }));
    MC_TRY(const auto got, get(*s, dense, bytes * rows));
    std::vector<std::byte> expected(bytes * rows);
    for (size_t row = 0; row < rows; ++row)
      std::memcpy(&expected[row * bytes], &want[row * stride], bytes);
    MC_TRY_(same(got, expected, "rows"));
  }
  return {};
}

Result<> order(const Bench& b) {
  constexpr size_t kBytes = 32 * kMiB;
  MC_TRY(const Memory memory, b.device->allocate(3 * kBytes));
  MC_TRY(const Memory pinned, b.device->allocate_host(kBytes));
  MC_TRY(const auto one, b.device->open_stream());
  MC_TRY(const auto two, b.device->open_stream());
  for (uint64_t turn = 0; turn < 10; ++turn) {
    const auto want = noise(kBytes, turn);
    std::memcpy(pinned.data(), want.data(), kBytes);
    MC_TRY_(one->copy(memory.data(), pinned.data(), kBytes));
    MC_TRY(const auto there, one->record());
    MC_TRY_(two->after(*there));
    MC_TRY_(two->copy(memory.data() + kBytes, memory.data(), kBytes));
    MC_TRY(const auto moved, two->record());
    MC_TRY_(one->after(*moved));
    MC_TRY_(one->copy(memory.data() + 2 * kBytes, memory.data() + kBytes, kBytes));
    MC_TRY(const auto got, get(*one, memory.data() + 2 * kBytes, kBytes));
    MC_TRY_(same(got, want, "what one stream did after another's event"));
    MC_TRY(const bool done, moved->done());
    if (!done) return fail(Code::kInternal, "an event before a finished one is not done");
  }
  return {};
}

Result<> expect(const Result<>& r, Code code, const char* what) {
  if (!r && r.error().code == code) return {};
  return fail(Code::kInternal, "%s: %s", what, r ? "was accepted" : r.error().what.c_str());
}
template <class T>
Result<> plain(const Result<T>& r) {
  if (r) return {};
  return fail(r.error());
}

Result<> errors(const Bench& b) {
  MC_TRY_(expect(plain(b.device->allocate(uint64_t{1} << 48)), Code::kNoSpace, "256 TiB"));
  MC_TRY(Memory memory, b.device->allocate(kMiB));
  std::byte* const freed = memory.data();
  memory = Memory();
  MC_TRY_(expect(plain(b.device->query(freed)), Code::kInvalid, "freed memory"));
  std::vector<std::byte> host(16);
  MC_TRY_(expect(plain(b.device->query(host.data())), Code::kInvalid, "host memory"));
  MC_TRY_(expect(plain(b.device->open("nonsense")), Code::kCorrupt, "a handle of nonsense"));
  MC_TRY(const uint64_t before, b.device->free_bytes());
  for (int i = 0; i < 50; ++i) {
    MC_TRY(const Memory again, b.device->allocate(64 * kMiB));
    MC_TRY(const auto stream, b.device->open_stream());
  }
  MC_TRY(const uint64_t after, b.device->free_bytes());
  if (after + 64 * kMiB < before)
    return fail(Code::kInternal, "%s are gone after 50 turns",
                rounded_bytes_text(before - after).c_str());
  return {};
}

struct Child {
  int to = -1, from = -1;
  pid_t pid = -1;
  ~Child() {
    if (to >= 0) ::close(to);
    if (from >= 0) ::close(from);
    if (pid > 0) ::waitpid(pid, nullptr, 0);
  }
};

// A process of its own: what forks keeps no device.
Result<> start(Child& child, const std::string& device) {
  int in[2], out[2];
  if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) return fail_errno("pipe");
  child.pid = ::fork();
  if (child.pid == 0) {
    ::dup2(in[0], 0);
    ::dup2(out[1], 1);
    ::execl("/proc/self/exe", "gpu-check", "--share", "--device", device.c_str(), nullptr);
    ::_exit(127);
  }
  ::close(in[0]);
  ::close(out[1]);
  child.to = in[1];
  child.from = out[0];
  return child.pid < 0 ? Result<>(fail_errno("fork")) : Result<>();
}

Result<std::string> read_some(int fd) {
  std::string text(device::kHandleBytesMax, '\0');
  const ssize_t n = ::read(fd, text.data(), text.size());
  if (n <= 0) return fail(Code::kUnsupported, "the other process shares nothing");
  text.resize(static_cast<size_t>(n));
  return text;
}

constexpr size_t kShared = 8 * kMiB, kSharedAt = 12'345;

Result<> processes(const Bench& b) {
  Child child;
  const bool stand_in = b.device->info().kind == "stand-in";
  MC_TRY_(start(child, stand_in ? "stand-in" : b.device->info().location()));
  MC_TRY(const std::string handle, read_some(child.from));
  {
    MC_TRY(const Memory theirs, b.device->open(handle));
    MC_TRY(const auto s, b.device->open_stream());
    MC_TRY(const auto got, get(*s, theirs.data(), theirs.size()));
    MC_TRY_(same(got, std::span<const std::byte>(noise(kShared, 5)).subspan(kSharedAt),
                 "read by a handle"));
    MC_TRY_(put(*s, theirs.data(), noise(theirs.size(), 6)));
  }
  if (::write(child.to, "x", 1) != 1) return fail_errno("the other process");
  MC_TRY(const std::string verdict, read_some(child.from));
  if (verdict != "same") return fail(Code::kCorrupt, "what was written by a handle is not there");
  ::close(std::exchange(child.to, -1));
  ::waitpid(std::exchange(child.pid, -1), nullptr, 0);
  return expect(plain(b.device->open(handle)), Code::kUnavailable, "a handle of a dead process");
}

}  // namespace

int share_until_stdin_closes(const std::string& word) {
  const SteadyClock clock;
  const auto share = [&]() -> Result<> {
    MC_TRY(const device::DevicePtr device, device::open_named(word, clock));
    MC_TRY(const Memory memory, device->allocate(kShared));
    MC_TRY(const auto s, device->open_stream());
    MC_TRY_(put(*s, memory.data(), noise(kShared, 5)));
    MC_TRY(const std::string handle, device->share(memory.bytes.subspan(kSharedAt)));
    char told = 0;
    if (::write(1, handle.data(), handle.size()) < 0 || ::read(0, &told, 1) != 1) return {};
    MC_TRY(const auto got, get(*s, memory.data() + kSharedAt, kShared - kSharedAt));
    const bool right = same(got, noise(got.size(), 6), "").has_value();
    if (::write(1, right ? "same" : "else", 4) != 4) return {};
    while (::read(0, &told, 1) > 0) {
    }
    return {};
  };
  const auto outcome = share();
  if (!outcome) std::fprintf(stderr, "  the other process: %s\n", outcome.error().what.c_str());
  return outcome ? 0 : 1;
}

std::vector<Case> copy_checks() {
  return {{"copies", "bytes to the device, within it and back, at odd places", copies},
          {"blocks", "gathers of thousands of blocks, to the device and to pinned memory", blocks},
          {"rows", "rows at even distances", rows},
          {"order", "streams that wait for each other's events", order},
          {"errors", "no space, freed memory, nonsense; and nothing leaks", errors},
          {"processes", "memory that another process shares, read and written", processes}};
}

}  // namespace mc::gpu_check

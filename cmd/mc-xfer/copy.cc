// mc-xfer copy: selects the copy of files or of memory, and copies a file or stdin to memory or
// back.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <string_view>
#include <utility>

#include "base/hash.h"
#include "base/json.h"
#include "cmd/daemon.h"
#include "cmd/mc-xfer/copy.h"
#include "cmd/mc-xfer/peer_name.h"
#include "cmd/mc-xfer/verbs.h"
#include "cmd/mc-xfer/wait_note.h"
#include "io/fd.h"
#include "io/file.h"
#include "p2p/filecopy/messages.h"
#include "rpc/client.h"
#include "rpc/socket.h"
#include "xfer/engine.h"

namespace mc::xfer {
namespace {

constexpr uint64_t kCopyStep = 16 * kMiB;

struct Copy {
  const CopyOptions& o;
  Engine& engine;
  SegmentHandle segment = 0;
  MemoryEnd remote;
  uint64_t done = 0;

  Result<> step(Op op, std::span<std::byte> memory) {
    Request r;
    r.op = op;
    r.local = memory.data();
    r.segment = segment;
    r.offset = remote.offset + done;
    r.bytes = memory.size();
    return engine.transfer_sync(r, o.timeout);
  }
  void show(uint64_t total) const {
    if (!o.shows()) return;
    std::fprintf(stderr, "\r%s", rounded_bytes_text(done).c_str());
    if (total > 0)
      std::fprintf(stderr, " of %s (%.0f %%)", rounded_bytes_text(total).c_str(),
                   100.0 * static_cast<double>(done) / static_cast<double>(total));
    std::fprintf(stderr, "   ");
  }
  void clear() const {
    if (o.shows()) std::fprintf(stderr, "\r\033[K");
  }
};

// `what`: of the user's, and how large it is. Errors: kInvalid unless the peer's memory has all of
// these bytes; nothing of them has moved then.
Result<> check_inside(const Copy& copy, Op op, uint64_t bytes, const std::string& what,
                      const char* remedy) {
  MC_TRY(const uint64_t size, copy.engine.segment_bytes(copy.segment));
  const uint64_t offset = copy.remote.offset, room = offset < size ? size - offset : 0;
  const auto there = copy.engine.paths(copy.segment, offset, op, bytes);
  if (there) return {};
  if (there.error().code != Code::kInvalid) return fail(there.error());
  if (bytes <= room && offset < size)
    return fail(Code::kInvalid,
                "%s at offset %llu: that is not inside one of the buffers that %s offers",
                what.c_str(), static_cast<unsigned long long>(offset), copy.remote.control.c_str());
  return fail(Code::kInvalid,
              "%s at offset %llu: %s offers %llu bytes of memory, %llu of them from there on: %s",
              what.c_str(), static_cast<unsigned long long>(offset), copy.remote.control.c_str(),
              static_cast<unsigned long long>(size), static_cast<unsigned long long>(room), remedy);
}

// A peer that offers a folder has memory to stage files in, and that of its --file behind it.
Result<> check_meant(const Copy& copy, const Clock& clock) {
  const MemoryEnd& end = copy.remote;
  MC_TRY(const auto client, rpc::SyncClient::connect(end.control, clock));
  const auto folder = client->call(p2p::filecopy::LookAt{}, copy.o.timeout);
  if (!folder && folder.error().code == Code::kUnsupported) return {};  // it offers none
  if (!folder) return fail(folder.error());
  const auto& engine = copy.engine;
  const bool behind = engine.paths(copy.segment, end.offset, Op::kRead, 1).has_value() &&
                      !engine.paths(copy.segment, 0, Op::kRead, end.offset + 1).has_value();
  if (behind) return {};
  return fail(Code::kInvalid,
              "%s/%s: %s offers files, and this memory stages them: a file of that name is "
              "%s/./%s",
              end.control.c_str(), end.text.c_str(), end.control.c_str(), end.control.c_str(),
              end.text.c_str());
}

// Returns: the bytes left in a file; nothing where that is not known before they are read.
std::optional<uint64_t> bytes_left(int fd) {
  struct stat s {};
  if (::fstat(fd, &s) != 0 || !S_ISREG(s.st_mode)) return std::nullopt;
  const off_t at = ::lseek(fd, 0, SEEK_CUR);
  return at < 0 || at > s.st_size ? 0 : static_cast<uint64_t>(s.st_size - at);
}

Result<io::Fd> open_source(const std::string& name) {
  io::Fd file(::open(name.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return fail_errno("open %s", name.c_str());
  struct stat s {};
  if (::fstat(file.get(), &s) == 0 && S_ISDIR(s.st_mode))
    return fail(Code::kInvalid, "'%s' is a folder: memory takes a file", name.c_str());
  return file;
}

Result<size_t> read_some(int fd, std::span<std::byte> into, const std::string& name) {
  size_t n = 0;
  while (n < into.size()) {
    const ssize_t got = ::read(fd, into.data() + n, into.size() - n);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail_errno("read %s", name.c_str());
    if (got == 0) break;
    n += static_cast<size_t>(got);
  }
  return n;
}

Result<> write_stdout(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(STDOUT_FILENO, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return fail_errno("write -");
    bytes.remove_prefix(static_cast<size_t>(put));
  }
  return {};
}

Result<uint64_t> upload(Copy& copy, const std::string& name, std::span<std::byte> memory,
                        std::span<std::byte> back) {
  io::Fd file;
  if (name != "-") {
    MC_TRY(file, open_source(name));
  }
  const int fd = file ? file.get() : STDIN_FILENO;
  const auto fits = [&](uint64_t bytes, const std::string& size) {
    return check_inside(copy, Op::kWrite, bytes,
                        strf("%s, %s", name == "-" ? "stdin" : name.c_str(), size.c_str()),
                        "copy less, or let it offer more (serve --size)");
  };
  if (const auto left = bytes_left(fd))
    MC_TRY_(fits(*left, strf("%llu bytes,", static_cast<unsigned long long>(*left))));
  Xxh3Stream sum;
  for (;;) {
    MC_TRY(const size_t n, read_some(fd, memory, name));
    if (n == 0) break;
    MC_TRY_(fits(copy.done + n, strf("%llu bytes or more (the first %llu are there now),",
                                     static_cast<unsigned long long>(copy.done + n),
                                     static_cast<unsigned long long>(copy.done))));
    const auto part = memory.first(n);
    MC_TRY_(copy.step(Op::kWrite, part));
    if (copy.o.check) {
      MC_TRY_(copy.step(Op::kRead, back.first(n)));
      if (xxh3(back.data(), n) != xxh3(part.data(), n))
        return fail(Code::kCorrupt, "bytes %llu+%zu read back differ from what was written",
                    static_cast<unsigned long long>(copy.done), n);
    }
    sum.update(part.data(), n);
    copy.done += n;
    copy.show(0);
  }
  return sum.digest();
}

Result<uint64_t> download(Copy& copy, const std::string& name, std::span<std::byte> memory,
                          uint64_t total) {
  std::optional<io::OutputFile> file;
  if (name != "-") {
    MC_TRY(io::OutputFile opened, io::OutputFile::open(name));
    file.emplace(std::move(opened));
  }
  Xxh3Stream sum;
  while (copy.done < total) {
    const auto part = memory.first(std::min<uint64_t>(memory.size(), total - copy.done));
    MC_TRY_(copy.step(Op::kRead, part));
    const std::string_view bytes(reinterpret_cast<const char*>(part.data()), part.size());
    MC_TRY_(file ? file->write(bytes) : write_stdout(bytes));
    sum.update(part.data(), part.size());
    copy.done += part.size();
    copy.show(total);
  }
  if (file) MC_TRY_(file->finish());
  return sum.digest();
}

Result<int> copy_memory(CopyOptions& o, const Context& context,
                        const std::optional<MemoryEnd>& source,
                        const std::optional<MemoryEnd>& target) {
  SteadyClock clock;
  Metrics metrics;
  o.engine.node = "mc-xfer-copy-" + std::to_string(::getpid());
  MC_TRY(auto engine, Engine::open(clock, o.engine, metrics));
  Copy copy{o, *engine, 0, source ? *source : *target, 0};
  {
    const WaitNote note(o.shows(), copy.remote.control, o.timeout);
    MC_TRY_(check_peer_name(copy.remote.control, o.timeout));
    MC_TRY(copy.segment, engine->open_segment(copy.remote.control, o.timeout));
  }
  MC_TRY_(check_meant(copy, clock));
  MC_TRY(const Memory memory, engine->allocate(kCopyStep));
  MC_TRY(const Memory back, engine->allocate(target && o.check ? kCopyStep : kKiB));
  const Time start = clock.now();
  uint64_t total = o.bytes, digest = 0;
  if (source && total == 0) {
    MC_TRY(const uint64_t size, engine->segment_bytes(copy.segment));
    if (copy.remote.offset >= size)
      return fail(Code::kInvalid, "offset %llu is past the %llu bytes that %s offers",
                  static_cast<unsigned long long>(copy.remote.offset),
                  static_cast<unsigned long long>(size), copy.remote.control.c_str());
    total = size - copy.remote.offset;
  }
  if (source) {
    MC_TRY_(check_inside(copy, Op::kRead, total,
                         strf("%llu bytes", static_cast<unsigned long long>(total)),
                         "ask for less (--bytes; 0: all from there on)"));
    MC_TRY(digest, download(copy, o.to, memory.bytes(), total));
  } else {
    MC_TRY(digest, upload(copy, o.from, memory.bytes(), back.bytes()));
  }
  copy.clear();
  const double seconds = to_seconds(clock.now() - start);
  const std::string way = engine->transport_of(copy.segment);
  FILE* out = source && o.to == "-" ? stderr : stdout;  // stdout carries the data then
  if (context.json)
    std::fprintf(out, "%s\n",
                 dump_json({{"bytes", copy.done},
                            {"seconds", seconds},
                            {"transport", way},
                            {"xxh3", strf("%016llx", static_cast<unsigned long long>(digest))}})
                     .c_str());
  else
    std::fprintf(out, "%llu bytes in %.3f s over %s, xxh3 %016llx\n",
                 static_cast<unsigned long long>(copy.done), seconds, way.c_str(),
                 static_cast<unsigned long long>(digest));
  return 0;
}

// "host:port/REST" of a peer; nothing for a file name or "-".
std::optional<std::pair<std::string, std::string>> parse_peer(const std::string& text) {
  const size_t bracket = text.starts_with('[') ? text.find(']') : 0;
  const size_t colon = text.find(':', bracket), slash = text.find('/', bracket);
  if (bracket == std::string::npos || slash == std::string::npos || colon == 0 ||
      colon + 1 >= slash || text.find_first_not_of("0123456789", colon + 1) != slash)
    return std::nullopt;
  return std::pair(text.substr(0, slash), text.substr(slash + 1));
}

// What a peer's end names: an offset of its memory, or a path below its folder.
std::optional<MemoryEnd> parse_memory(const std::pair<std::string, std::string>& peer) {
  const auto offset = parse_bytes(peer.second);
  if (!offset) return std::nullopt;
  return MemoryEnd{peer.first, *offset, peer.second};
}

Result<int> run(CopyOptions& o, const Context& context) {
  MC_TRY_(rpc::load_cluster_key(o.cluster_key));
  const auto from = parse_peer(o.from), to = parse_peer(o.to);
  if (!from && !to)
    return fail(Code::kInvalid,
                "one of '%s' and '%s' must be a peer, host:port/OFFSET or host:port/PATH",
                o.from.c_str(), o.to.c_str());
  const auto source = from ? parse_memory(*from) : std::nullopt;
  const auto target = to ? parse_memory(*to) : std::nullopt;
  if (!source && !target) {
    FilesEnd a{{}, o.from}, b{{}, o.to};
    if (from) a = {from->first, from->second};
    if (to) b = {to->first, to->second};
    return copy_files(o, context, a, b);
  }
  if (from && to)
    return fail(Code::kInvalid, "'%s' and '%s' are both peers: memory is copied to or from a file",
                o.from.c_str(), o.to.c_str());
  return copy_memory(o, context, source, target);
}

}  // namespace

void add_copy(Program& program) {
  program.verb<CopyOptions>(
      "copy", "copy files and folders between nodes, or a file to a peer's memory and back",
      [](Verb& v, CopyOptions& o) {
        v.positional("FROM", o.from,
                     "a file or folder, host:port/PATH of a peer's folder, host:port/OFFSET of its "
                     "memory, or - for stdin");
        v.positional(
            "TO", o.to,
            "what FROM becomes, named likewise; a file goes into a folder that is there or "
            "that is named with a / at its end");
        v.example("mc-xfer copy 127.0.0.1:5600/models/llama weights",
                  "a folder of what serve --root offers becomes the folder weights");
        v.example("mc-xfer copy weights 127.0.0.1:5600/models/new",
                  "the other way; the peer runs serve --root DIR --writable");
        v.example("mc-xfer copy weights 127.0.0.1:5600/models/new",
                  "after an interruption: the same again goes on where it stopped");
        v.example("mc-xfer copy 127.0.0.1:5600/./2024 .", "a file whose name is a number");
        v.example("mc-xfer copy model.bin 127.0.0.1:5600/0", "write a file at offset 0 of memory");
        v.example("mc-xfer copy 127.0.0.1:5600/0 - --bytes 4KiB | xxd", "look at the first 4 KiB");
        v.run_with([&o](Context& context) { return run(o, context); });
      });
}

}  // namespace mc::xfer

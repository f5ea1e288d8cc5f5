#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <span>

#include "base/json.h"
#include "cmd/mc-store/verbs.h"
#include "io/fd.h"
#include "io/file.h"

namespace mc::store {
namespace {

constexpr size_t kValueMax = size_t{1} << 40;

Result<std::string> read_all(int fd, const std::string& name) {
  std::string all;
  std::string buffer(1 * kMiB, '\0');
  for (;;) {
    const ssize_t n = ::read(fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno("read %s", name.c_str());
    if (n == 0) return all;
    all.append(buffer.data(), static_cast<size_t>(n));
  }
}

// A value may come through a pipe, whose writer has the time it takes.
Result<std::string> read_value(const std::string& file) {
  if (file == "-") return read_all(STDIN_FILENO, "standard input");
  struct stat info {};
  if (::stat(file.c_str(), &info) != 0 || !S_ISFIFO(info.st_mode))
    return io::read_file(file, kValueMax);
  const io::Fd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return fail_errno("open %s", file.c_str());
  return read_all(fd.get(), file);
}

Result<> write_stdout(std::span<const std::byte> value) {
  while (!value.empty()) {
    const ssize_t n = ::write(STDOUT_FILENO, value.data(), value.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno("write standard output");
    value = value.subspan(static_cast<size_t>(n));
  }
  return {};
}

struct PutOptions : ClientVerb {
  std::string key, file = "-";
  void describe(OptionList& v) {
    ClientVerb::describe(v);
    client.put.describe(v);
  }
};
struct GetOptions : ClientVerb {
  std::string key, out = "-";
  Duration wait{};
  void describe(OptionList& v) {
    ClientVerb::describe(v);
    v("out", out, "file to write the value to; - is standard output");
    v("wait", wait, "how long to wait for a key that is not stored yet");
  }
};

Result<int> run_put(const PutOptions& o, const Context& context) {
  MC_TRY_(check_object_key(o.key));
  const PutConfig& how = o.client.put;
  if (how.ttl.count() != 0 && how.pin == "none" && how.cls != "context")
    return fail(Code::kInvalid,
                "--ttl %s is of a pin or of a context: give --pin soft, --pin hard or --class "
                "context with it",
                to_text(how.ttl).c_str());
  MC_TRY(const std::string value, read_value(o.file));
  MC_TRY(auto session, Session::open(o, true));
  MC_TRY(const PutOutcome outcome, session->client().put(o.key, std::as_bytes(std::span(value))));
  if (outcome == PutOutcome::kNotAdmitted)
    return fail(Code::kDenied, "key '%s' is not admitted: the pool keeps no objects of its class",
                escape(o.key).c_str());
  const bool existed = outcome == PutOutcome::kExisted;
  if (context.json)
    put(dump_json({{"key", o.key}, {"bytes", existed ? 0 : value.size()}, {"existed", existed}}) +
        "\n");
  else if (existed)
    put(strf("%s is there already and stays as it is: nothing was stored\n",
             escape(o.key).c_str()));
  else
    put(strf("stored %s, %s\n", escape(o.key).c_str(), rounded_bytes_text(value.size()).c_str()));
  return 0;
}

Result<int> run_get(const GetOptions& o, const Context& context) {
  MC_TRY_(check_object_key(o.key));
  MC_TRY(auto session, Session::open(o, true));
  Client& client = session->client();
  if (o.wait > Duration::zero()) {
    const GetItem nothing{o.key, {}};  // comes back when it is stored, as too large for no room
    const Result<uint64_t> waited = client.get_batch({&nothing, 1}, o.wait)[0];
    // The master was asked for as long as may be.
    if (!waited && waited.error().code == Code::kTimeout) return fail(waited.error());
    if (!waited && waited.error().code == Code::kUnavailable) return fail(waited.error());
  }
  // Not touched until bytes come: a size that is not true takes no memory.
  MC_TRY(const Located at, client.locate(o.key));
  const auto memory = std::make_unique_for_overwrite<std::byte[]>(at.bytes);
  MC_TRY(const uint64_t bytes, client.get(o.key, {memory.get(), at.bytes}));
  const std::span<const std::byte> value(memory.get(), bytes);
  if (o.out == "-") {
    MC_TRY_(write_stdout(value));
    return 0;
  }
  MC_TRY_(io::write_output(o.out, {reinterpret_cast<const char*>(value.data()), value.size()}));
  if (context.json)
    put(dump_json({{"key", o.key}, {"bytes", value.size()}, {"out", o.out}}) + "\n");
  return 0;
}

}  // namespace

void add_put(Program& program) {
  program.verb<PutOptions>("put", "store a file or standard input", [](Verb& v, PutOptions& o) {
    v.positional("KEY", o.key, "1 to 1024 bytes; one that is there already stays as it is");
    v.positional("FILE", o.file, "what to store; - or nothing is standard input", false);
    v.example("mc-store put greeting hello.txt", "store a file");
    v.example("tar c docs | mc-store put docs.tar", "store standard input");
    v.run_with([&o](Context& context) { return run_put(o, context); });
  });
}

void add_get(Program& program) {
  program.verb<GetOptions>("get", "read a value", [](Verb& v, GetOptions& o) {
    v.positional("KEY", o.key, "the object's key");
    v.example("mc-store get greeting", "write the value to standard output");
    v.example("mc-store get greeting --out hello.txt", "write it to a file, whole or not at all");
    v.exit_status(1, "there is no such key");
    v.run_with([&o](Context& context) { return run_get(o, context); });
  });
}

}  // namespace mc::store

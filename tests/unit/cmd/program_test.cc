// Whole programs through Program::main: what is printed, and with which status they end.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "base/json.h"
#include "cmd/command.h"
#include "cmd/daemon.h"
#include "device/cuda.h"
#include "io/file.h"
#include "rpc/socket.h"

using namespace mc;
using namespace std::chrono_literals;

namespace {

struct Folder {
  std::string path = "/tmp/mc-cmd-test.XXXXXX";
  Folder() { REQUIRE(::mkdtemp(path.data()) != nullptr); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    for (const char* name : {"/out", "/err", "/config", "/script", "/announce", "/key"})
      ::unlink((path + name).c_str());
    CHECK(::rmdir(path.c_str()) == 0);
  }
  std::string put(const std::string& name, const std::string& text, unsigned mode = 0644) const {
    REQUIRE(io::write_file_atomically(path + name, text, mode).has_value());
    return path + name;
  }
};

struct GetOptions {
  std::string key, listen = "127.0.0.1:1";
  std::vector<std::string> more;
  Duration ttl = 5s;
  bool fast = true;
  void describe(OptionList& v) {
    v("listen", listen, "where to serve");
    v("lease-ttl", ttl, "how long it holds");
    v("fast", fast, "whether to hurry");
  }
};
struct PutOptions {
  Bytes size{4096};
  std::vector<std::string> tags{"none"};
  void describe(OptionList& v) {
    v("size", size, "how much");
    v("tags", tags, "what it is called");
  }
};

int sample_main(std::vector<std::string> words) {
  Program program("mc-sample", "a program of the tests");
  program.verb<GetOptions>("get", "read a key", [](Verb& v, GetOptions& o) {
    v.positional("KEY", o.key, "what to read");
    v.positional_many("MORE", o.more, "and what else", false);
    v.example("mc-sample get k", "read k");
    v.exit_status(1, "a tag is taken");
    v.exit_status(5, "the key is odd");
    v.run_with([&o](Context& c) -> Result<int> {
      if (o.key == "gone") return fail(Code::kUnavailable, "nobody is there");
      if (o.key == "torn") return fail(Code::kCorrupt, "it does not verify");
      if (o.key == "odd") return 5;
      std::printf("%s %s %s %s %zu %s\n", o.key.c_str(), o.listen.c_str(), to_text(o.ttl).c_str(),
                  o.fast ? "fast" : "slow", o.more.size(), c.json ? "json" : "text");
      return 0;
    });
  });
  program.verb<PutOptions>("put", "write a key", [](Verb& v, PutOptions& o) {
    v.tables();
    v.exit_status(1, "a tag is taken");
    v.exit_status(5, "the size is odd");
    v.run_with([&o](Context&) -> Result<int> {
      std::printf("%s", bytes_text(o.size).c_str());
      for (const std::string& tag : o.tags) std::printf(" %s", tag.c_str());
      std::printf("\n");
      return 0;
    });
  });
  words.insert(words.begin(), "mc-sample");
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  return program.main(static_cast<int>(words.size()), argv.data());
}

struct Ended {
  int status = -1;
  std::string out, err;
  bool says(const std::string& text) const { return err.find(text) != std::string::npos; }
};

// In a process of its own: it has its own environment and streams.
Ended run(const Folder& t, const std::vector<std::string>& words,
          const std::vector<std::pair<std::string, std::string>>& environment = {},
          const char* out = nullptr) {
  const std::string out_path = out != nullptr ? out : t.path + "/out", err_path = t.path + "/err";
  std::fflush(nullptr);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    if (std::freopen(out_path.c_str(), "w", stdout) == nullptr) ::_exit(99);
    if (std::freopen(err_path.c_str(), "w", stderr) == nullptr) ::_exit(99);
    const int status = sample_main(words);
    std::fflush(nullptr);
    ::_exit(status);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  Ended ended;
  ended.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  if (out == nullptr) ended.out = io::read_file(out_path).value();
  ended.err = io::read_file(err_path).value();
  return ended;
}

}  // namespace

TEST_SUITE("cmd/program") {
  TEST_CASE("flags win over the environment, it over the file, it over the defaults") {
    const Folder t;
    const std::string config =
        t.put("/config", "{\n // a comment\n \"lease-ttl\": \"7s\", \"fast\": false, \"size\": 1}");
    CHECK(run(t, {"get", "k"}).out == "k 127.0.0.1:1 5s fast 0 text\n");
    CHECK(run(t, {"get", "k", "--config", config}).out == "k 127.0.0.1:1 7s slow 0 text\n");
    CHECK(run(t, {"get", "k"}, {{"MC_CONFIG", config}}).out == "k 127.0.0.1:1 7s slow 0 text\n");
    const std::pair<std::string, std::string> ttl{"MC_SAMPLE_LEASE_TTL", "8s"};
    CHECK(run(t, {"get", "k", "--config", config}, {ttl}).out == "k 127.0.0.1:1 8s slow 0 text\n");
    CHECK(run(t, {"get", "--lease-ttl", "9s", "--fast", "k", "--config", config}, {ttl}).out ==
          "k 127.0.0.1:1 9s fast 0 text\n");
    CHECK(run(t, {"get", "k", "--no-fast", "--output", "json", "x", "y"}).out ==
          "k 127.0.0.1:1 5s slow 2 json\n");
    CHECK(run(t, {"get", "k"}, {{"MC_OUTPUT", "json"}}).out == "k 127.0.0.1:1 5s fast 0 json\n");
    CHECK(run(t, {"put", "--size=3MiB"}).out == "3MiB none\n");
    CHECK(run(t, {"put"}, {ttl}).status == 0);  // another verb's
  }

  TEST_CASE("a list's option may be given in the singular, which the help does not show") {
    const Folder t;
    CHECK(run(t, {"put", "--tag", "a"}).out == "4KiB a\n");
    CHECK(run(t, {"put", "--tags", "a,b"}).out == "4KiB a b\n");
    const Ended help = run(t, {"put", "--help"});
    CHECK(help.out.find("--tags LIST") != std::string::npos);
    CHECK(help.out.find("--tag ") == std::string::npos);
  }

  TEST_CASE("what is printed as the configuration configures the same, and says from where") {
    const Folder t;
    const Ended first = run(t, {"get", "--print-config", "--lease-ttl", "1500ms", "--no-fast"},
                            {{"MC_SAMPLE_LISTEN", "host:2"}});
    CHECK(first.status == 0);
    CHECK(first.out.find("// flag: how long it holds") != std::string::npos);
    CHECK(first.out.find("// environment: where to serve") != std::string::npos);
    const std::string config = t.put("/config", first.out);
    CHECK(run(t, {"get", "k", "--config", config}).out == "k host:2 1500ms slow 0 text\n");
    const Ended again = run(t, {"get", "--print-config", "--config", config});
    CHECK(again.out.find("\"lease-ttl\": \"1500ms\",  // file:") != std::string::npos);
  }

  TEST_CASE("wrong usage ends with 2 and names what is near") {
    const Folder t;
    struct {
      std::vector<std::string> words;
      const char* says;
    } cases[] = {
        {{"get", "k", "--lease-tll", "5s"}, "unknown option --lease-tll: did you mean --lease-ttl"},
        {{"get", "k", "--lease-tll=5s"}, "did you mean --lease-ttl"},
        {{"get", "k", "--zebra"}, "--zebra"},
        {{"get", "k", "--no-fats"}, "unknown option --no-fats: did you mean --no-fast?"},
        {{"get", "k", "--fast", "no", "--zebra"},
         "--fast takes no word like 'no': --no-fast turns it off"},
        {{"put", "--print-config", "on"}, "'on': --print-config turns it on"},
        {{"get", "k", "--fast=maybe"}, "like 'maybe': --fast turns it on, --no-fast off"},
        {{"gett", "k"}, "did you mean get"},
        {{"zebra"}, "unknown verb 'zebra': want one of get, put"},
        {{}, "--help"},
        {{""}, "unknown verb ''"},
        {{"get"}, "KEY is missing"},
        {{"get", "k", "--lease-ttl", "5"}, "--lease-ttl: '5' is not a duration"},
        {{"get", "k", "--lease-ttl", "99999999999h"}, "too large"},
        {{"get", "k", "--lease-ttl"}, "--lease-ttl"},
        {{"get", "k", "--output", "yaml"}, "'yaml' is not one of text,json"},
        {{"get", "k", "--output", "csv"}, "'csv' is not one of text,json"},
        {{"get", "k", "--log-level", "loud"}, "error,warn,info,debug"},
        {{"get", "k", "--config", "/absent/file"}, "/absent/file"},
        {{"put", "extra"}, "extra"},
        {{"--completion", "zsh"}, "bash"},
        {{"--completion"}, "bash"},
    };
    for (const auto& c : cases) {
      const Ended e = run(t, c.words);
      CAPTURE(c.says);
      CAPTURE(e.err);
      CHECK(e.status == 2);
      CHECK(e.says(c.says));
      CHECK(e.says("mc-sample: "));
      CHECK(e.out.empty());
    }
    const Ended e = run(t, {"get", "k"}, {{"MC_SAMPLE_LEASE_TLL", "5s"}});
    CHECK(e.status == 2);
    CHECK(e.says("MC_SAMPLE_LEASE_TLL: unknown option 'lease-tll': did you mean 'lease-ttl'"));
    CHECK(run(t, {"get", "k"}, {{"MC_SAMPLE_FAST", "maybe"}}).says("MC_SAMPLE_FAST: 'maybe'"));
    CHECK(run(t, {"get", "k"}, {{"MC_SOMETHING_ELSE", "5s"}}).status == 0);
  }

  TEST_CASE("a config file is refused by name: unknown keys, wrong types, no JSON") {
    const Folder t;
    const std::pair<const char*, const char*> cases[] = {
        {"{\"lease-tll\": \"5s\"}", "unknown option 'lease-tll': did you mean 'lease-ttl'"},
        {"{\"lease-ttl\": 5}", "'lease-ttl'"},
        {"{\"fast\": \"maybe\"}", "'fast'"},
        {"{\"config\": \"x\"}", "'config'"},
        {"[1]", "want an object"},
        {"{\n\"fast\": }", "line 2"},
        {"", "config"},
    };
    for (const auto& entry : cases) {
      const auto& [text, says] = entry;
      const Ended e = run(t, {"get", "k", "--config", t.put("/config", text)});
      CAPTURE(entry.first);
      CAPTURE(e.err);
      CHECK(e.status == 2);
      CHECK(e.says(t.path + "/config"));
      CHECK(e.says(says));
    }
  }

  TEST_CASE("errors end with the status of their code, and full disks are noticed") {
    const Folder t;
    const Ended gone = run(t, {"get", "gone"});
    CHECK(gone.status == 3);
    CHECK(gone.err == "mc-sample: nobody is there (unavailable)\n");
    CHECK(run(t, {"get", "torn"}).status == 4);
    CHECK(run(t, {"get", "odd"}).status == 5);
    const Ended full = run(t, {"get", "k"}, {}, "/dev/full");
    CHECK(full.status == 1);
    CHECK(full.says("writing the results failed"));
  }

  TEST_CASE("help, version, man page and completion are complete and well formed") {
    const Folder t;
    const Ended help = run(t, {"get", "--help"});
    CHECK(help.status == 0);
    for (const char* word : {"--lease-ttl", "--no-fast", "KEY", "mc-sample get k", "--print-config",
                             "5s", "--log-level"}) {
      CAPTURE(word);
      CHECK(help.out.find(word) != std::string::npos);
    }
    const std::string version = run(t, {"--version"}).out;
    CHECK(version == "mc-sample " MC_VERSION "\n" + device::cuda_summary() + "\n");
    CHECK(version.find("\nCUDA: ") != std::string::npos);
    const Ended man = run(t, {"--help-man"});
    CHECK(man.status == 0);
    for (const char* word : {".TH MC\\-SAMPLE 1", "\\-\\-lease\\-ttl", "the key is odd",
                             ".SS \"put: write a key\"", ".SH EXAMPLES"}) {
      CAPTURE(word);
      CHECK(man.out.find(word) != std::string::npos);
    }
    // What each verb says of a status stands beside what the others say.
    CHECK(
        man.out.find(".TP\n1\nfailed.\n.br\n\\fBget\\fR, \\fBput\\fR: a tag is taken.\n.TP\n2\n") !=
        std::string::npos);
    CHECK(man.out.find(
              ".TP\n5\n\\fBget\\fR: the key is odd.\n.br\n\\fBput\\fR: the size is odd.\n") !=
          std::string::npos);
    CHECK(man.out.find("\\fB\\-\\-fast\\fR, \\fB\\-\\-no\\-fast\\fR\n") != std::string::npos);
    CHECK(help.out.find("--fast or --no-fast ") != std::string::npos);
    CHECK(help.out.find("{false}") == std::string::npos);
    CHECK(help.out.find("csv") == std::string::npos);
    CHECK(man.out.find("stdout (csv: put); one of text json csv") != std::string::npos);
    const Ended completion = run(t, {"--completion", "bash"});
    CHECK(completion.out.find("get put") != std::string::npos);
    CHECK(completion.out.find("--lease-ttl") != std::string::npos);
    const std::string script = t.put("/script", completion.out);
    CHECK(std::system(("bash -n " + script).c_str()) == 0);
    const std::string typed =
        "bash -c '. " + script +
        "; COMP_WORDS=(mc-sample get --le); COMP_CWORD=2; _mc_sample; [ \"${COMPREPLY[0]}\" = "
        "--lease-ttl ]'";
    CHECK(std::system(typed.c_str()) == 0);
  }
}

TEST_SUITE("cmd/daemon") {
  TEST_CASE("an announcement is whole JSON, and only its own process removes it") {
    const Folder t;
    DaemonOptions daemon;
    daemon.announce = t.path + "/announce";
    Endpoints me;
    me.name = "p0";
    me.role = "prefill";
    me.epoch = 7;
    me.control = "127.0.0.1:1";
    me.data = {"127.0.0.1:2"};
    REQUIRE(daemon.ready(me).has_value());
    const Json json = read_json_file(daemon.announce).value();
    CHECK(get_string(json, "name").value() == "p0");
    CHECK(get_uint(json, "pid").value() == static_cast<uint64_t>(::getpid()));
    CHECK(get_uint(json, "epoch").value() == 7);
    for (const char* key : {"role", "control", "http", "events", "replay", "data"})
      CHECK(json.contains(key));
    daemon.stopping();
    CHECK(io::read_file(daemon.announce).error().code == Code::kNotFound);
    t.put("/announce", "{\"pid\": 1}");  // a successor's
    daemon.stopping();
    CHECK(io::read_file(daemon.announce).has_value());
    daemon.announce = "/absent/folder/announce";
    CHECK(daemon.ready(me).error().what.find("/absent/folder") != std::string::npos);
  }

  TEST_CASE("a cluster key that others may read, is short or absent is refused by name") {
    const Folder t;
    const std::string secret = "0123456789abcdef0123456789abcdef\n";
    auto open = rpc::load_cluster_key(t.put("/key", secret, 0644));
    CHECK(open.error().code == Code::kDenied);
    CHECK(open.error().what.find(t.path + "/key may be read by others: chmod 600") !=
          std::string::npos);
    auto small = rpc::load_cluster_key(t.put("/key", "tiny\n", 0600));
    CHECK(small.error().code == Code::kInvalid);
    CHECK(small.error().what.find(t.path + "/key") != std::string::npos);
    CHECK(rpc::load_cluster_key(t.path + "/absent").error().code == Code::kNotFound);
    CHECK(rpc::load_cluster_key("").has_value());
  }
}

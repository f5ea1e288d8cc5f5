// One conductor with mock workers: what it adds to the time of a stream's first token, how many
// streams a second it schedules and passes on, and from what rate on it no longer keeps up. The
// peers: the same streams straight from a server, and through nginx as a plain reverse proxy.
// Conductor, workers, server and nginx are processes of their own beside this one, the client, and
// share its CPUs: what they take is part of what is added. Then the same with prompts of 131,072
// tokens; what a server takes that only reads them, and one that parses them as JSON, is the limit.
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "base/random.h"
#include "bench/child.h"
#include "bench/figure.h"
#include "bench/front_mocks.h"
#include "cmd/command.h"
#include "http/client.h"

namespace mc {
namespace {

using bench::Measured;
using namespace std::chrono_literals;

constexpr uint32_t kBlock = 256;
constexpr double kAddedMax = 1;  // ms
constexpr double kCpuRate = 1000;
constexpr size_t kLongTokens = 131072, kVocab = 32000, kLongAtOnce = 8;
constexpr int kTries = 3;  // of a rate, before it is over the knee

struct BenchOptions : bench::Options {
  double rate = 0;
  std::string play, conductor, ready;  // of the processes it starts
  bool long_prompts = false;
  void describe(OptionList& v) {
    bench::Options::describe(v);
    v("rate", rate, "only this many streams a second, and what CPU each process takes for one");
    v("long-prompts", long_prompts, "only the figures of prompts of 131,072 tokens");
    v("play", play, "workers or origin: what this process is to another of its kind");
    v("conductor", conductor, "workers: its control address");
    v("ready", ready, "file to write once ready");
  }
};

Result<> write_ready(const std::string& path, const std::string& address) {
  return io::write_file_atomically(path, dump_json({{"control", address}}));
}

Result<int> play(const BenchOptions& o) {
  const SteadyClock clock;
  io::Loop loop(clock);
  if (o.play == "origin") {
    bench::MockOrigin origin(loop);
    MC_TRY_(write_ready(o.ready, origin.address()));
    MC_TRY_(loop.run());
    return 0;
  }
  bench::MockWorker d0(loop, o.conductor, "d0", false, kBlock);
  bench::MockWorker p0(loop, o.conductor, "p0", true, kBlock);
  bench::MockWorker p1(loop, o.conductor, "p1", true, kBlock);
  p0.computed = p1.computed = [&d0](const std::string& request) { d0.begin(request); };
  while (!d0.joined() || !p0.joined() || !p1.joined()) MC_TRY_(loop.turn(20ms));
  MC_TRY_(write_ready(o.ready, "joined"));
  MC_TRY_(loop.run());
  return 0;
}

// Clients of one address.
class Driver {
 public:
  Driver(const Clock& clock, const std::string& address,
         const std::string& path = "/v1/completions",
         std::string prompt = R"("request number %zu, please")")
      : clock_(clock),
        loop_(clock),
        client_(loop_, 4096),
        url_("http://" + address + path),
        prompt_(std::move(prompt)) {}

  struct Outcome {
    std::vector<double> ttft_ms;  // from the intended time on
    double per_s = 0;
    size_t failed = 0;
    double p50() const { return bench::median(ttft_ms); }
  };

  // `rate` requests a second for `length`, whatever becomes of them.
  Result<Outcome> open(double rate, Duration length) {
    outcome_ = {};
    const Time start = clock_.now();
    const auto n = static_cast<size_t>(rate * to_seconds(length));
    size_t sent = 0;
    done_ = 0;
    while (done_ < n) {
      const Time now = clock_.now();
      for (; sent < n && at(start, sent, rate) <= now; ++sent) send(at(start, sent, rate), false);
      if (now - start > length + 20s) return fail(Code::kTimeout, "%s hangs", url_.c_str());
      MC_TRY_(loop_.turn(sent < n ? std::max(Duration(0), at(start, sent, rate) - now) : 20ms));
    }
    outcome_.per_s = static_cast<double>(n) / to_seconds(clock_.now() - start);
    return outcome_;
  }

  // `streams` at once, one after the other.
  Result<Outcome> closed(size_t streams, Duration length) {
    outcome_ = {};
    const Time start = clock_.now();
    end_ = start + length;
    done_ = 0;
    for (size_t i = 0; i < streams; ++i) send(start, true);
    while (client_.in_flight() > 0) {
      MC_TRY_(loop_.turn(20ms));
      if (clock_.now() > end_ + 20s) return fail(Code::kTimeout, "%s hangs", url_.c_str());
    }
    outcome_.per_s = static_cast<double>(done_) / to_seconds(clock_.now() - start);
    return outcome_;
  }

 private:
  static Time at(Time start, size_t i, double rate) {
    return start + from_seconds(static_cast<double>(i) / rate);
  }
  void send(Time intended, bool again) {
    http::ClientRequest r;
    r.method = "POST";
    r.url = url_;
    r.headers = {{"content-type", "application/json"}};
    r.body = R"({"model":"tiny","prompt":)" + prompt_;
    if (const size_t at = r.body.find("%zu"); at != std::string::npos)
      r.body.replace(at, 3,
                     strf("%zu,%zu,%zu", number_ / 10000, number_ / 100 % 100, number_ % 100));
    ++number_;
    r.body += strf(R"(,"max_tokens":%u,"ignore_eos":true,"stream":true})", bench::kTokens);
    r.timeout = 20s;
    http::ClientCallbacks calls;
    const auto first = std::make_shared<Time>(Time::max());
    const auto whole = std::make_shared<bool>(false);
    calls.on_chunk = [first, whole](std::string_view chunk, Time when) {
      *first = std::min(*first, when);
      *whole |= chunk.find("[DONE]") != std::string_view::npos;
    };
    calls.on_done = [this, intended, first, whole, again](const Result<http::ClientResponse>& a) {
      ++done_;
      if (a && a->status == 200 && *whole)
        outcome_.ttft_ms.push_back(to_ms(*first - intended));
      else
        ++outcome_.failed;
      if (again && clock_.now() < end_) send(clock_.now(), true);
    };
    client_.send(std::move(r), std::move(calls));
  }

  const Clock& clock_;
  io::Loop loop_;
  http::Client client_;
  const std::string url_, prompt_;  // "%zu" in the prompt: each request's own number
  Outcome outcome_;
  Time end_{};
  size_t done_ = 0, number_ = 0;
};

// The processes, and where they are.
struct Scene {
  const SteadyClock& clock;
  std::string folder, self, bin;
  std::unique_ptr<bench::Child> conductor, workers, origin, nginx;
  std::string conductor_http, origin_http, nginx_http;

  Result<> start() {
    const std::string log = folder + "/log";
    MC_TRY(conductor,
           bench::Child::start(
               {bin + "/mc-conductor", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
                "--model", "tiny", "--log-level", "warn", "--announce", folder + "/conductor.json"},
               log));
    MC_TRY(const std::string control, bench::control_of(folder + "/conductor.json", clock));
    MC_TRY(const Json announced, read_json_file(folder + "/conductor.json"));
    MC_TRY(conductor_http, get_string(announced, "http"));
    MC_TRY(workers, bench::Child::start({self, "--play", "workers", "--conductor", control,
                                         "--ready", folder + "/workers.json"},
                                        log));
    MC_TRY_(bench::await_file(folder + "/workers.json", clock));
    MC_TRY(origin, bench::Child::start(
                       {self, "--play", "origin", "--ready", folder + "/origin.json"}, log));
    MC_TRY(origin_http, bench::control_of(folder + "/origin.json", clock));
    return start_nginx(log);
  }

  // Without it its figure is left out.
  Result<> start_nginx(const std::string& log) {
    std::string program;
    for (const char* path : {"/usr/sbin/nginx", "/usr/local/sbin/nginx", "/usr/bin/nginx"})
      if (::access(path, X_OK) == 0) program = path;
    if (program.empty()) {
      std::fprintf(stderr, "front: no nginx (scripts/setup --all): its figure is left out\n");
      return {};
    }
    const uint16_t port = static_cast<uint16_t>(20000 + ::getpid() % 20000);
    nginx_http = "127.0.0.1:" + std::to_string(port);
    const std::string conf = strf(
        "daemon off; master_process off; pid %s/nginx.pid; error_log %s/nginx.log;\n"
        "events { worker_connections 8192; }\n"
        "http { access_log off; client_body_temp_path %s/b; proxy_temp_path %s/p;\n"
        "fastcgi_temp_path %s/f; uwsgi_temp_path %s/u; scgi_temp_path %s/s;\n"
        "keepalive_requests 1000000;\n"
        "upstream origin { server %s; keepalive 1024; keepalive_requests 1000000; }\n"
        "server { listen %s; location / { proxy_pass http://origin; proxy_http_version 1.1;\n"
        "proxy_set_header Connection \"\"; proxy_buffering off; } } }\n",
        folder.c_str(), folder.c_str(), folder.c_str(), folder.c_str(), folder.c_str(),
        folder.c_str(), folder.c_str(), origin_http.c_str(), nginx_http.c_str());
    MC_TRY_(io::write_file_atomically(folder + "/nginx.conf", conf));
    MC_TRY(nginx, bench::Child::start({program, "-p", folder, "-c", folder + "/nginx.conf", "-e",
                                       folder + "/nginx.log"},
                                      log));
    return bench::await_file(folder + "/nginx.pid", clock);
  }
};

Result<Driver::Outcome> whole(Result<Driver::Outcome> outcome) {
  if (outcome && outcome->failed > 0)
    return fail(Code::kInternal, "%zu of %zu streams were not whole", outcome->failed,
                outcome->failed + outcome->ttft_ms.size());
  return outcome;
}

// At a steady rate, well and not so well under its knee. What is added is the difference of two
// medians of one turn. Beside it what the conductor's process takes of a CPU for each stream, and
// nginx for the same one.
Result<> added(const Scene& scene, Driver& ours, Driver& direct, const bench::Options& o) {
  const Duration turn = o.quick ? 1s : 3s;
  for (const double rate : {500.0, 2000.0}) {
    std::vector<std::pair<double, double>> seen;  // of each turn: ours, straight
    MC_TRY_(bench::compare(
        {"front", strf("p50 TTFT at %g/s", rate), "ms", "straight from a server", 0, true},
        o.turns() / 2,
        [&]() -> Result<Measured> {
          MC_TRY(const auto outcome, whole(ours.open(rate, turn)));
          seen.emplace_back(outcome.p50(), 0);
          return Measured(outcome.p50());
        },
        [&]() -> Result<Measured> {
          MC_TRY(const auto outcome, whole(direct.open(rate, turn)));
          seen.back().second = outcome.p50();
          return Measured(outcome.p50());
        }));
    size_t i = 0;
    MC_TRY_(bench::compare(
        {"front", strf("p50 added at %g/s", rate), "ms", "1 ms", 1, true}, o.turns() / 2,
        [&] { return Result<Measured>(std::max(seen[i].first - seen[i].second, 0.001)); },
        [&] {
          ++i;
          return Result<Measured>(kAddedMax);
        }));
  }
  if (!scene.nginx) return {};
  Driver proxied(scene.clock, scene.nginx_http);
  const auto cpu = [turn](Driver& d, const bench::Child& process) -> Result<Measured> {
    const double before = process.cpu();
    MC_TRY_(whole(d.open(kCpuRate, turn)));
    return Measured((process.cpu() - before) * 1e6 / (kCpuRate * to_seconds(turn)));
  };
  return bench::compare(
      {"front", strf("CPU a stream at %g/s", kCpuRate), "us", "nginx", 0, true}, o.turns() / 2,
      [&] { return cpu(ours, *scene.conductor); }, [&] { return cpu(proxied, *scene.nginx); });
}

// The highest rate at which a stream's first token is late by no more than 1 ms, and all come.
Result<> knee(Driver& ours, Driver& direct, const bench::Options& o) {
  double best = 1;
  int over = 0;  // rates in a row
  for (double rate = 250; rate <= 16000 && over < 2; rate *= std::sqrt(2.0)) {
    bool keeps = false;
    for (int turn = 0; turn < kTries && !keeps; ++turn) {  // a machine has its moments
      MC_TRY(const auto base, direct.open(rate, 1s));
      MC_TRY(const auto outcome, ours.open(rate, o.quick ? 1s : 2s));
      keeps = outcome.failed == 0 && outcome.p50() - base.p50() <= kAddedMax;
      std::fprintf(stderr, "front: %6.0f/s: p50 TTFT %.2f ms, straight %.2f ms%s\n", rate,
                   outcome.p50(), base.p50(), keeps ? "" : ": over the knee");
    }
    over = keeps ? 0 : over + 1;
    if (keeps) best = rate;
  }
  return bench::compare(
      {"front", "knee", "1/s", "2000/s", 1}, 1, [best] { return Result<Measured>(best); },
      [] { return Result<Measured>(2000.0); });
}

// A prompt whose number comes first: no two requests have a block in common.
std::string long_prompt(bool text) {
  Random rng(1);
  std::string out = text ? R"("%zu)" : "[%zu";
  for (size_t i = 1; i < kLongTokens; ++i)
    out += text ? std::string(1, " any"[i % 4]) : "," + std::to_string(rng.below(kVocab));
  return out + (text ? '"' : ']');
}

// What a request with a long prompt takes: CPU time of the conductor's process, of a server that
// only reads it, and of one that parses it too; and how many a second all of them can answer.
Result<> long_prompts(const Scene& scene, const bench::Options& o) {
  const Duration turn = o.quick ? 1s : 3s;
  for (const bool text : {false, true}) {
    const std::string prompt = long_prompt(text);
    const std::string what = strf("%s of %zu KB", text ? "text" : "128k ids", prompt.size() / 1000);
    Driver ours(scene.clock, scene.conductor_http, "/v1/completions", prompt);
    Driver read(scene.clock, scene.origin_http, "/read", prompt),
        parsed(scene.clock, scene.origin_http, "/parse", prompt);
    const auto rate = [turn](Driver& d) -> Result<Measured> {
      MC_TRY(const auto outcome, whole(d.closed(kLongAtOnce, turn)));
      return Measured(outcome.per_s);
    };
    const auto cpu = [turn](Driver& d, const bench::Child& process) -> Result<Measured> {
      const double before = process.cpu();
      MC_TRY(const auto outcome, whole(d.closed(kLongAtOnce, turn)));
      return Measured((process.cpu() - before) * 1e3 / static_cast<double>(outcome.ttft_ms.size()));
    };
    const auto cpu_beside = [&](Driver& peer, const char* against) {
      return bench::compare(
          {"front", "CPU a request, " + what, "ms", against, 0, true}, o.turns() / 2,
          [&] { return cpu(ours, *scene.conductor); }, [&] { return cpu(peer, *scene.origin); });
    };
    MC_TRY_(cpu_beside(read, "read by a server"));
    MC_TRY_(cpu_beside(parsed, "read, and parsed by a JSON library"));
    MC_TRY_(bench::compare(
        {"front", "requests a second, " + what, "1/s", "read by a server", 0}, o.turns() / 2,
        [&] { return rate(ours); }, [&] { return rate(read); }));
  }
  return {};
}

// One rate, turn by turn: for those who look for where the time goes.
Result<> one_rate(const Scene& scene, Driver& ours, Driver& direct, double rate) {
  for (int turn = 0; turn < 5; ++turn) {
    const double self = bench::cpu_seconds(), conductor = scene.conductor->cpu(),
                 workers = scene.workers->cpu();
    MC_TRY(const auto outcome, whole(ours.open(rate, 2s)));
    const double us = 1e6 / (rate * 2);
    std::fprintf(stderr,
                 "front: %.0f/s: p50 TTFT %.2f ms; CPU a stream: conductor %.0f us, workers %.0f, "
                 "client %.0f\n",
                 rate, outcome.p50(), (scene.conductor->cpu() - conductor) * us,
                 (scene.workers->cpu() - workers) * us, (bench::cpu_seconds() - self) * us);
    const double before = bench::cpu_seconds(), origin = scene.origin->cpu();
    MC_TRY(const auto straight, whole(direct.open(rate, 2s)));
    std::fprintf(stderr, "front: straight: p50 TTFT %.2f ms; CPU: server %.0f us, client %.0f\n",
                 straight.p50(), (scene.origin->cpu() - origin) * us,
                 (bench::cpu_seconds() - before) * us);
  }
  return {};
}

Result<int> run(const BenchOptions& o, const std::string& self) {
  if (!o.play.empty()) return play(o);
  const SteadyClock clock;
  char folder[] = "/tmp/mc-front-bench-XXXXXX";
  if (::mkdtemp(folder) == nullptr) return fail_errno("make a folder in /tmp");
  Scene scene{clock, folder, self, std::filesystem::path(self).parent_path(), {}, {}, {}, {},
              {},    {},     {}};
  const auto body = [&]() -> Result<int> {
    MC_TRY_(scene.start());
    Driver ours(clock, scene.conductor_http), direct(clock, scene.origin_http);
    MC_TRY_(whole(ours.open(100, 1s)));
    if (o.rate > 0) {
      MC_TRY_(one_rate(scene, ours, direct, o.rate));
      return 0;
    }
    if (o.long_prompts) {
      MC_TRY_(long_prompts(scene, o));
      return 0;
    }
    MC_TRY_(added(scene, ours, direct, o));
    const Duration turn = o.quick ? 1s : 3s;
    const auto streams = [turn](Driver& d) -> Result<Measured> {
      MC_TRY(const auto outcome, whole(d.closed(256, turn)));
      return Measured(outcome.per_s);
    };
    if (scene.nginx) {
      Driver proxied(clock, scene.nginx_http);
      MC_TRY_(bench::compare(
          {"front", "streams a second, 256 at once", "1/s", "nginx", 0.5}, o.turns() / 2,
          [&] { return streams(ours); }, [&] { return streams(proxied); }));
    }
    MC_TRY_(knee(ours, direct, o));
    MC_TRY_(long_prompts(scene, o));
    return 0;
  };
  auto result = body();
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return result;
}

}  // namespace
}  // namespace mc

int main(int argc, char** argv) {
  mc::BenchOptions options;
  const std::string self = std::filesystem::absolute(argv[0]).string();
  mc::Program program("front_bench", "a conductor's front against nginx");
  program.options(options);
  program.run_with([&](mc::Context&) { return mc::run(options, self); });
  return program.main(argc, argv);
}

#include "io/loop.h"

#include <doctest/doctest.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include <memory>
#include <thread>

#include "io/address.h"
#include "io/file.h"

using namespace mc;
using namespace std::chrono_literals;

namespace {

// Two ends of a ZeroMQ connection inside the process.
struct Ends {
  std::unique_ptr<void, int (*)(void*)> context{zmq_ctx_new(), zmq_ctx_term};
  void* ours = zmq_socket(context.get(), ZMQ_PAIR);
  void* theirs = zmq_socket(context.get(), ZMQ_PAIR);
  Ends() {
    REQUIRE(zmq_bind(ours, "inproc://ends") == 0);
    REQUIRE(zmq_connect(theirs, "inproc://ends") == 0);
  }
  ~Ends() {
    zmq_close(ours);
    zmq_close(theirs);
  }
  Ends(const Ends&) = delete;
  Ends& operator=(const Ends&) = delete;
  static void send(void* from) { REQUIRE(zmq_send(from, "x", 1, ZMQ_DONTWAIT) == 1); }
  int take() {  // all that is there
    int n = 0;
    for (char byte; zmq_recv(ours, &byte, 1, ZMQ_DONTWAIT) >= 0;) ++n;
    return n;
  }
};

}  // namespace

TEST_SUITE("io/loop") {
  TEST_CASE(
      "a socket's message is found, also one that came before the socket was used or watched") {
    const SteadyClock clock;
    io::Loop loop(clock);
    Ends ends;
    int taken = 0;
    Ends::send(ends.theirs);
    loop.watch_socket(ends.ours, [&] { taken += ends.take(); });
    REQUIRE(loop.turn(60s).has_value());
    CHECK(taken == 1);
    Ends::send(ends.theirs);
    REQUIRE(loop.turn(60s).has_value());
    CHECK(taken == 2);
    for (int i = 0; i < 3; ++i) {  // to send on it takes in the news of its descriptor
      Ends::send(ends.theirs);
      Ends::send(ends.ours);
      REQUIRE(loop.turn(60s).has_value());
      CHECK(taken == 3 + i);
    }
    loop.after(1ms, [&] { Ends::send(ends.theirs); });
    REQUIRE(loop.turn(60s).has_value());
    REQUIRE(loop.turn(60s).has_value());
    CHECK(taken == 6);
    REQUIRE(loop.turn(0s).has_value());
    CHECK(taken == 6);
  }

  TEST_CASE("while memory has input sockets and descriptors are served too") {
    ManualClock clock;
    io::Loop loop(clock);
    Ends ends;
    const io::Fd event(::eventfd(1, EFD_NONBLOCK));
    int taken = 0, events = 0, memory = 0;
    loop.watch_memory([] { return true; }, [&] { ++memory; });
    loop.watch_socket(ends.ours, [&] { taken += ends.take(); });
    loop.watch_fd(event.get(), [&] { ++events; });
    for (int i = 0; i < 8; ++i) {
      Ends::send(ends.theirs);
      Ends::send(ends.ours);
      for (int turns = 0; taken == i && turns < 8; ++turns) REQUIRE(loop.turn(60s).has_value());
      CHECK(taken == i + 1);
    }
    CHECK(events > 0);
    CHECK(memory >= 8 * events);  // a look at descriptors costs a system call
    clock.advance(1ms);
    const int before = events;
    REQUIRE(loop.turn(60s).has_value());
    CHECK(events == before + 1);  // at once when the last look is some time ago
    int posted = 0;
    REQUIRE(loop.post([&] { ++posted; }));
    REQUIRE(loop.turn(60s).has_value());
    CHECK(posted == 1);
  }

  TEST_CASE("a socket whose uses are counted is found in each state, also one used by others") {
    const SteadyClock clock;
    io::Loop loop(clock);
    Ends ends;
    const auto uses = std::make_shared<uint64_t>(0);
    int taken = 0;
    const auto take = [&] {
      ++*uses;
      taken += ends.take();
    };
    Ends::send(ends.theirs);  // before it is watched
    loop.watch_socket(ends.ours, take, uses);
    REQUIRE(loop.turn(60s).has_value());
    CHECK(taken == 1);
    REQUIRE(loop.turn(0s).has_value());
    Ends::send(ends.theirs);  // after a look that found nothing
    REQUIRE(loop.turn(60s).has_value());
    CHECK(taken == 2);
    for (int i = 0; i < 3; ++i) {  // a use takes in the news of its descriptor
      Ends::send(ends.theirs);
      Ends::send(ends.ours);
      ++*uses;
      REQUIRE(loop.turn(60s).has_value());
      CHECK(taken == 3 + i);
    }
    REQUIRE(loop.turn(0s).has_value());
    CHECK(taken == 5);
  }

  TEST_CASE("timers run in order of their time, then of their making") {
    ManualClock clock;
    io::Loop loop(clock);
    std::string order;
    loop.at(clock.now() + 2ms, [&] { order += 'c'; });
    loop.at(clock.now() + 1ms, [&] { order += 'a'; });
    loop.at(clock.now() + 1ms, [&] { order += 'b'; });
    clock.advance(5ms);
    REQUIRE(loop.turn(0ns).has_value());
    CHECK(order == "abc");
  }

  TEST_CASE("a periodic timer does not catch up on what it missed") {
    ManualClock clock;
    io::Loop loop(clock);
    int ticks = 0;
    loop.every(10ms, [&] { ++ticks; });
    clock.advance(1000ms);
    REQUIRE(loop.turn(0ns).has_value());
    CHECK(ticks == 1);
    clock.advance(10ms);
    REQUIRE(loop.turn(0ns).has_value());
    CHECK(ticks == 2);
  }

  TEST_CASE("a task that sets a timer for now does not keep the turn") {
    ManualClock clock;
    io::Loop loop(clock);
    int runs = 0;
    std::function<void()> again = [&] {
      ++runs;
      loop.at(loop.now(), again);
    };
    again();
    int others = 0;
    REQUIRE(loop.post([&] { ++others; }));
    REQUIRE(loop.turn(0ns).has_value());
    CHECK(runs == 2);
    CHECK(others == 1);
    REQUIRE(loop.turn(0ns).has_value());
    CHECK(runs == 3);
  }

  TEST_CASE("a task may cancel one that is due in the same turn, and endless waits end") {
    ManualClock clock;
    io::Loop loop(clock);
    std::string order;
    io::Loop::Handle second = 0;
    loop.at(clock.now(), [&] {
      order += 'a';
      loop.cancel(second);
    });
    second = loop.at(clock.now(), [&] { order += 'b'; });
    loop.at(clock.now(), [&] { order += 'c'; });
    loop.at(Time::max(), [&] { order += 'z'; });
    REQUIRE(loop.turn(Duration::max()).has_value());  // a timer is due: it does not wait
    CHECK(order == "ac");
  }

  TEST_CASE("stop ends run after the turn, from a callback or another thread, also before it") {
    const SteadyClock clock;
    io::Loop loop(clock);
    loop.stop();
    REQUIRE(loop.run().has_value());
    loop.after(0ns, [&] { loop.stop(); });
    REQUIRE(loop.run().has_value());
    std::thread other([&] { loop.stop(); });
    REQUIRE(loop.run().has_value());
    other.join();
  }

  TEST_CASE("timers and watches may be cancelled from any callback, their own too") {
    ManualClock clock;
    io::Loop loop(clock);
    int runs = 0;
    io::Loop::Handle periodic = 0;
    periodic = loop.every(1ms, [&] {
      ++runs;
      loop.cancel(periodic);
    });
    const io::Loop::Handle never = loop.at(clock.now() + 2ms, [&] { runs += 100; });
    loop.at(clock.now() + 1ms, [&] { loop.cancel(never); });
    clock.advance(1ms);
    REQUIRE(loop.turn(0ns).has_value());
    clock.advance(10ms);
    REQUIRE(loop.turn(0ns).has_value());
    CHECK(runs == 1);

    const io::Fd a(::eventfd(1, EFD_NONBLOCK)), b(::eventfd(1, EFD_NONBLOCK));
    io::Loop::Handle wa = 0, wb = 0;
    int seen = 0;
    wa = loop.watch_fd(a.get(), [&] {
      ++seen;
      loop.unwatch(wa);
      loop.unwatch(wb);
    });
    wb = loop.watch_fd(b.get(), [&] {
      ++seen;
      loop.unwatch(wa);
      loop.unwatch(wb);
    });
    REQUIRE(loop.turn(0ns).has_value());
    REQUIRE(loop.turn(0ns).has_value());
    CHECK(seen == 1);
  }

  TEST_CASE("work posted by other threads all runs, on the loop's thread, in order per thread") {
    const SteadyClock clock;
    io::Loop loop(clock);
    constexpr int kThreads = 4, kEach = 2000;
    std::vector<int> last(kThreads, -1);
    int ran = 0, disorder = 0;
    const auto me = std::this_thread::get_id();
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] {
        for (int i = 0; i < kEach; ++i)
          while (!loop.post([&, t, i] {
            disorder += last[static_cast<size_t>(t)] + 1 != i || std::this_thread::get_id() != me;
            last[static_cast<size_t>(t)] = i;
            if (++ran == kThreads * kEach) loop.stop();
          }))
            std::this_thread::yield();
      });
    REQUIRE(loop.run().has_value());
    for (auto& t : threads) t.join();
    CHECK(ran == kThreads * kEach);
    CHECK(disorder == 0);
  }

  TEST_CASE("a loop that does not turn takes a bounded amount of work") {
    ManualClock clock;
    io::Loop loop(clock);
    for (size_t i = 0; i < io::Loop::kPostedMax; ++i) REQUIRE(loop.post([] {}));
    CHECK_FALSE(loop.post([] {}));
    REQUIRE(loop.turn(0ns).has_value());
    CHECK(loop.post([] {}));
  }
}

TEST_SUITE("io/address") {
  TEST_CASE("addresses read as people write them") {
    CHECK(io::parse_address("tcp://[::1]:80").value().text() == "[::1]:80");
    CHECK(io::parse_address("host:0").value().host == "host");
    for (const char* bad : {"", "host", ":80", "host:", "host:65536", "host:-1", "host:8o", "[]:80",
                            "::1:80", "[::1:80", "a b:80", "[::1]", "tcp://"})
      CHECK_FALSE(io::parse_address(bad).has_value());
    CHECK(io::is_loopback("127.4.5.6"));
    CHECK(io::is_loopback("::1"));
    CHECK_FALSE(io::is_loopback("0.0.0.0"));
    CHECK_FALSE(io::is_loopback("10.0.0.1"));
  }
}

TEST_SUITE("io/file") {
  TEST_CASE("a file is replaced whole, and errors name the path") {
    char folder[] = "/tmp/mc-file-test.XXXXXX";
    REQUIRE(::mkdtemp(folder) != nullptr);
    const std::string path = std::string(folder) + "/f";
    REQUIRE(io::write_file_atomically(path, "one").has_value());
    REQUIRE(io::write_file_atomically(path, "two").has_value());
    CHECK(io::read_file(path).value() == "two");
    CHECK_FALSE(io::read_file(path, 2).has_value());
    auto bad = io::write_file_atomically(std::string(folder) + "/no/f", "x");
    REQUIRE_FALSE(bad.has_value());
    CHECK(bad.error().what.find(folder) != std::string::npos);
    std::vector<std::thread> writers;  // of the same name: one of them wins, whole
    for (const char c : {'a', 'b', 'c', 'd'})
      writers.emplace_back([&, c] {
        for (int i = 0; i < 20; ++i)
          CHECK(io::write_file_atomically(path, std::string(100'000, c)).has_value());
      });
    for (auto& w : writers) w.join();
    const std::string last = io::read_file(path).value();
    CHECK(last == std::string(100'000, last[0]));
    REQUIRE(io::write_file_atomically(path, "secret", 0600).has_value());
    struct stat info {};
    REQUIRE(::stat(path.c_str(), &info) == 0);
    CHECK((info.st_mode & 0777) == 0600);
    CHECK(io::read_file(folder).error().what.find(folder) != std::string::npos);
    CHECK(io::read_file(std::string(folder) + "/absent").error().code == Code::kNotFound);
    ::unlink(path.c_str());
    CHECK(::rmdir(folder) == 0);  // no temporary file is left
  }
}

#include "serve/runtime/compute_thread.h"

#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "gate.h"

namespace mc::serve {
namespace {

using namespace std::chrono_literals;

template <class Done>
bool turn_until(io::Loop& loop, Done done) {
  const SteadyClock clock;
  const Time end = clock.now() + 20s;
  while (!done()) {
    if (clock.now() > end || !loop.turn(100ms)) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("compute thread: jobs run in order on its thread, completions in order on the loop") {
  const SteadyClock clock;
  io::Loop loop(clock);
  ComputeThread compute(loop);
  const auto here = std::this_thread::get_id();
  std::vector<int> worked, done;  // unguarded: completion is the hand-over
  bool elsewhere = true, on_loop = true;
  for (int i = 0; i < 1000; ++i)
    REQUIRE(compute.submit(
        [&, i] {
          worked.push_back(i);
          elsewhere = elsewhere && std::this_thread::get_id() != here;
        },
        [&, i] {
          done.push_back(i);
          on_loop = on_loop && std::this_thread::get_id() == here;
        }));
  REQUIRE(turn_until(loop, [&] { return done.size() == 1000; }));
  CHECK(elsewhere);
  CHECK(on_loop);
  CHECK(worked == done);
  for (int i = 0; i < 1000; ++i) CHECK(done[static_cast<size_t>(i)] == i);
}

TEST_CASE("compute thread: a full queue refuses jobs, and the queued ones run") {
  const SteadyClock clock;
  io::Loop loop(clock);
  ComputeThread compute(loop);
  Gate gate, started;
  size_t done = 0;
  REQUIRE(compute.submit(
      [&] {
        started.open();
        gate.wait();
      },
      [&] { ++done; }));
  REQUIRE(started.wait());
  CHECK(compute.room() == ComputeThread::kQueuedMax);
  for (size_t i = 0; i < ComputeThread::kQueuedMax; ++i)
    REQUIRE(compute.submit([] {}, [&] { ++done; }));
  CHECK(compute.room() == 0);
  CHECK(!compute.submit([] {}, [&] { ++done; }));
  gate.open();
  REQUIRE(turn_until(loop, [&] { return done == ComputeThread::kQueuedMax + 1; }));
}

TEST_CASE("compute thread: a loop that is full loses no completion") {
  const SteadyClock clock;
  io::Loop loop(clock);
  ComputeThread compute(loop);
  while (loop.post([] {})) {
  }
  bool done = false;
  Gate worked;
  REQUIRE(compute.submit([&] { worked.open(); }, [&] { done = true; }));
  REQUIRE(worked.wait());
  CHECK(turn_until(loop, [&] { return done; }));
}

TEST_CASE("compute thread: the destructor waits for the running job and runs no completion") {
  const SteadyClock clock;
  io::Loop loop(clock);
  Gate started;
  bool finished = false, completed = false;
  auto held = std::make_shared<int>(1);
  {
    std::optional<ComputeThread> compute(loop);
    REQUIRE(compute->submit(
        [&] {
          started.open();
          for (int i = 0; i < 1000; ++i) std::this_thread::yield();
          finished = true;
        },
        [&completed, held] { completed = true; }));
    REQUIRE(started.wait());
    REQUIRE(compute->submit([held] {}, [&] { completed = true; }));
  }
  CHECK(finished);
  REQUIRE(loop.turn(0ms));
  CHECK(!completed);
  CHECK(held.use_count() == 1);  // nothing keeps what the jobs held
}

TEST_CASE("compute thread: the destructor returns while the loop is full") {
  const SteadyClock clock;
  io::Loop loop(clock);
  while (loop.post([] {})) {
  }
  bool completed = false;
  {
    ComputeThread compute(loop);
    Gate worked;
    REQUIRE(compute.submit([&] { worked.open(); }, [&] { completed = true; }));
    REQUIRE(worked.wait());
  }
  REQUIRE(loop.turn(0ms));
  CHECK(!completed);
}

}  // namespace mc::serve

#include "serve/conductor/request_recorder.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <numeric>

#include "base/hash.h"
#include "trace/records/records.h"

using namespace mc;
using namespace mc::serve;

namespace request_recorder_test {
namespace {

constexpr uint64_t kBlock = 16;
constexpr int64_t kNow = 1'790'000'000'000;

std::vector<int32_t> prompt_of(size_t tokens, int32_t first = 1) {
  std::vector<int32_t> all(tokens);
  std::iota(all.begin(), all.end(), first);
  return all;
}

struct Site {
  Site() {
    static int files = 0;
    path = (std::filesystem::temp_directory_path() /
            ("mc-recorder-" + std::to_string(::getpid()) + "-" + std::to_string(++files)))
               .string();
    again();
  }
  ~Site() { std::filesystem::remove(path); }
  void again() {
    recorder.reset();
    auto opened = RequestRecorder::open(path, kBlock);
    REQUIRE(opened);
    recorder = std::move(*opened);
  }
  void arrive(uint64_t request, const std::vector<int32_t>& prompt, int64_t ms = 0,
              const std::string& salt = {}) {
    std::vector<uint64_t> tags;
    for (const BlockHash& h : chain_hashes(prompt, kBlock, salt)) tags.push_back(h.tag());
    recorder->arrived(request, kNow + ms, prompt, salt, tags);
  }
  std::vector<trace::TraceRequest> written() const {
    const auto read = trace::read_trace(path, {.strict = true, .block_tokens = kBlock});
    return read ? read->records : std::vector<trace::TraceRequest>{};
  }
  std::string path;
  std::unique_ptr<RequestRecorder> recorder;
};

}  // namespace

TEST_CASE("answered requests become a trace, in the order of their arrival") {
  Site s;
  s.arrive(1, prompt_of(40));
  s.arrive(2, prompt_of(33), 250);
  s.arrive(3, prompt_of(32), 700);
  s.arrive(4, prompt_of(5), 800);  // refused
  s.arrive(5, {}, 900);            // an engine's own tokens
  s.recorder->ended(2, 7);
  CHECK(s.written().empty());
  s.recorder->ended(1, 3);
  CHECK(s.written().size() == 2);
  s.recorder->ended(4, 0);
  s.recorder->ended(5, 9);
  s.recorder->ended(3, 1);
  s.recorder->ended(3, 1);
  const auto all = s.written();
  REQUIRE(all.size() == 3);
  CHECK(all[0].timestamp_ms == 0);
  CHECK(all[1].timestamp_ms == 250);
  CHECK(all[2].timestamp_ms == 700);
  CHECK(all[0].input_length == 40);
  CHECK(all[0].output_length == 3);
  CHECK(all[1].output_length == 7);
  // They begin alike, and end each its own way.
  CHECK(all[0].hash_ids.size() == 3);
  CHECK(all[1].hash_ids.size() == 3);
  CHECK(all[2].hash_ids.size() == 2);
  for (size_t i = 0; i < 2; ++i) {
    CHECK(all[1].hash_ids[i] == all[0].hash_ids[i]);
    CHECK(all[2].hash_ids[i] == all[0].hash_ids[i]);
  }
  CHECK(all[1].hash_ids[2] != all[0].hash_ids[2]);
}

TEST_CASE("partial blocks are equal where their prompts and salts are") {
  Site s;
  s.arrive(1, prompt_of(20));
  s.arrive(2, prompt_of(20));
  s.arrive(3, prompt_of(20, 2));
  s.arrive(4, prompt_of(5));
  s.arrive(5, prompt_of(5), 0, "a tenant");
  for (uint64_t id = 1; id <= 5; ++id) s.recorder->ended(id, 1);
  const auto all = s.written();
  REQUIRE(all.size() == 5);
  CHECK(all[1].hash_ids == all[0].hash_ids);
  CHECK(all[2].hash_ids[1] != all[0].hash_ids[1]);
  CHECK(all[4].hash_ids != all[3].hash_ids);
}

TEST_CASE(
    "a conductor that starts again goes on in the file, and one that ends writes what it has") {
  Site s;
  s.arrive(1, prompt_of(3));
  s.arrive(2, prompt_of(4), 10);
  s.recorder->ended(2, 1);
  s.again();
  s.arrive(1, prompt_of(5), 60'000);
  s.recorder->ended(1, 1);
  const auto all = s.written();
  REQUIRE(all.size() == 2);
  CHECK(all[0].input_length == 4);
  CHECK(all[1].input_length == 5);
  CHECK(all[1].timestamp_ms == 59'990);
}

TEST_CASE("a request that goes on holds back few of those behind it") {
  Site s;
  s.arrive(1, prompt_of(3));
  for (uint64_t id = 2; id <= RequestRecorder::kHeldMax + 2; ++id) {
    if (id == RequestRecorder::kHeldMax + 2) CHECK(s.written().empty());
    s.arrive(id, prompt_of(4));
    s.recorder->ended(id, 1);
  }
  CHECK(s.written().size() == RequestRecorder::kHeldMax + 1);
}

TEST_CASE("a file that cannot be had is named, and one that is full ends the recording") {
  const auto none = RequestRecorder::open("/no/such/folder/trace.jsonl", kBlock);
  REQUIRE(!none);
  CHECK(none.error().what.find("--record /no/such/folder/trace.jsonl") != std::string::npos);
  auto full = RequestRecorder::open("/dev/full", kBlock);
  REQUIRE(full);
  const auto prompt = prompt_of(4);
  for (uint64_t id = 1; id <= 3; ++id) {
    (*full)->arrived(id, kNow, prompt, "", {});
    (*full)->ended(id, 1);
  }
}

}  // namespace request_recorder_test

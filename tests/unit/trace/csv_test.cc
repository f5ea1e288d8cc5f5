#include "trace/records/csv.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "trace/analyze/stats.h"

namespace mc::trace {
namespace {

constexpr const char* kAzure =
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:17:03.9799600,1100,44\r\n"
    "2023-11-16 18:17:02.5000000,600,109\r\n"
    "2023-11-17 00:00:00,2000,1\r\n";

Trace parsed(const char* text, const char* prefix) {
  CsvOptions o;
  const auto model = parse_prefix_model(prefix);
  REQUIRE(model);
  o.prefix = *model;
  const auto t = parse_csv(text, "t.csv", o);
  REQUIRE(t);
  for (const TraceRequest& r : t->records) REQUIRE(check_record(r));
  CHECK(describe(*t).ids_many_parents == 0);
  CHECK(describe(*t).ids_dense);
  return *t;
}

TEST_CASE("rows of any date are sorted and begin at 0") {
  const Trace t = parsed(kAzure, "none");
  REQUIRE(t.records.size() == 3);
  CHECK(t.out_of_order == 1);
  CHECK(t.records[0].timestamp_ms == 0);
  CHECK(t.records[1].timestamp_ms == 1479);
  CHECK(t.records[2].timestamp_ms == (5 * 3600 + 42 * 60 + 57) * 1000 + 500);
  CHECK(t.records[1].input_length == 1100);
  CHECK(t.records[1].output_length == 44);
  CHECK(describe(t).distinct_blocks == describe(t).blocks);
}

TEST_CASE("times with a zone behind them, as in the traces of 2024, are read") {
  const Trace t = parsed(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n"
      "2024-05-10 00:00:00.009930+00:00,2162,5\n"
      "2024-05-10T00:00:01Z,10,5\n"
      "2024-05-10 02:00:02.5+02:00,10,5\n"
      "2024-05-09 23:30:03-00:30,10,5\n",
      "none");
  REQUIRE(t.records.size() == 4);
  CHECK(t.records[1].timestamp_ms == 990);
  CHECK(t.records[2].timestamp_ms == 2490);
  CHECK(t.records[3].timestamp_ms == 2990);
  CsvOptions strict;
  strict.strict = true;
  for (const char* const time :
       {"2024-05-10 00:00:00+", "2024-05-10 00:00:00+0200", "2024-05-10 00:00:00.1.2Z",
        "2024-05-10 00:00:00 +02:00", "2024-05-10 00:00:00ZZ", "2024-05-10"})
    CHECK_FALSE(
        parse_csv("TIMESTAMP,ContextTokens,GeneratedTokens\n" + std::string(time) + ",1,1\n",
                  "t.csv", strict));
}

TEST_CASE("prompts share the prefixes that the model says") {
  const Trace shared = parsed(kAzure, "shared:600");  // one full block
  for (const TraceRequest& r : shared.records) CHECK(r.hash_ids[0] == 0);
  CHECK(lru_curve(shared.records, kBlockTokens, {}).infinite.hit_blocks == 2);
  const Trace sessions = parsed(kAzure, "sessions:1");
  // 1100 continues 600 (one full block), 2000 continues 1100 (two).
  CHECK(lru_curve(sessions.records, kBlockTokens, {}).infinite.hit_blocks == 3);
  for (const char* bad : {"", "some", "shared", "shared:-1", "shared:1.5", "sessions:2",
                          "sessions:0.5:x", "sessions:nan"})
    CHECK(!parse_prefix_model(bad));
}

TEST_CASE("BurstGPT: times in seconds, and failed rows are skipped") {
  const Trace t = parsed(
      "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
      "5,ChatGPT,472,18,490,Conversation log\n"
      "45.5,GPT-4,1087,230,1317,API log\n"
      "46,GPT-4,1000,0,1000,API log\n",
      "none");
  CHECK(t.records.size() == 2);
  CHECK(t.skipped == 1);
  CHECK(t.bad[0].line == 4);
  CHECK(t.records[1].timestamp_ms == 40500);
}

TEST_CASE("errors name the line, the field and the wanted value") {
  const auto error = [](const char* text) {
    const auto t = parse_csv(text, "t.csv", {.strict = true});
    return t ? std::string("none") : t.error().what;
  };
  const std::string head = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  const auto row = [&](const char* text) { return error((head + text).c_str()); };
  CHECK(error("time,in,out\n").find("t.csv:1: unknown columns") == 0);
  CHECK(row("yesterday,5,5\n").find("t.csv:2: TIMESTAMP is 'yesterday': want a time as") == 0);
  CHECK(row("2023-13-16 18:17:03,5,5\n").find("want a time as") != std::string::npos);
  CHECK(row("2023-11-16 18:17:03,0,5\n").find("ContextTokens is 0: want a whole number from 1") !=
        std::string::npos);
  CHECK(row("2023-11-16 18:17:03,5.5,5\n").find("ContextTokens is 5.5") != std::string::npos);
  CHECK(row("2023-11-16 18:17:03,5,-1\n").find("GeneratedTokens is '-1'") != std::string::npos);
  CHECK(row("2023-11-16 18:17:03,5\n").find("no GeneratedTokens in 2 fields") != std::string::npos);
  CHECK(row("2023-11-16 18:17:03,1e300,5\n").find("want a whole number") != std::string::npos);
  CHECK(row("").find("holds no requests") != std::string::npos);
  CHECK(row("9999-01-01 00:00:00,5,5\n").find("before 2109") != std::string::npos);
  CHECK(error("Timestamp,Request tokens,Response tokens\n0,5,5\n1e16,5,5\n")
            .find("t.csv:3: Timestamp is '1e16': want seconds, 4398046511 at most") == 0);
}

TEST_CASE("rows of more blocks than a trace may have are refused") {
  std::string text = "Timestamp,Request tokens,Response tokens\n";
  for (uint64_t i = 0; i <= kBlocksMax / (kLengthMax / kBlockTokens); ++i) text += "1,10000000,1\n";
  const auto t = parse_csv(text, "t.csv", {});
  REQUIRE(!t);
  CHECK(t.error().code == Code::kNoSpace);
  CHECK(t.error().what.find("100000000 blocks; use --limit") != std::string::npos);
}

TEST_CASE("the published log of a service is read whole") {
  const char* shared = std::getenv("MC_TEST_SHARED");
  const std::string path =
      std::string(shared ? shared : "") + "/traces/AzureLLMInferenceTrace_conv.csv";
  if (!shared || !std::filesystem::exists(path)) {
    std::printf("skipped: needs AzureLLMInferenceTrace_conv.csv; set MC_TEST_SHARED\n");
    return;
  }
  const auto t = read_csv(path, {.strict = true});
  REQUIRE(t);
  CHECK(t->records.size() == 19366);
}

}  // namespace
}  // namespace mc::trace

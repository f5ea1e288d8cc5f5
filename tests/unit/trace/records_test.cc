#include "trace/records/records.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "support.h"

namespace mc::trace {
namespace {

const char* const kGood =
    R"({"timestamp": 27, "input_length": 600, "output_length": 5, "hash_ids": [0, 7]})";

std::string reason_of(const std::string& line) {
  const auto record = parse_record(line);
  return record ? "accepted" : record.error().what;
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("a line of the public format becomes a request, and back") {
  const auto r = parse_record(kGood);
  REQUIRE(r);
  CHECK(r->timestamp_ms == 27);
  CHECK(r->input_length == 600);
  CHECK(r->output_length == 5);
  CHECK(r->hash_ids == std::vector<uint64_t>{0, 7});
  CHECK(record_line(*r) == std::string(kGood) + "\n");
}

TEST_CASE("ids keep all 64 bits") {
  const auto r = parse_record(
      R"({"timestamp":0,"input_length":1,"output_length":0,"hash_ids":[18446744073709551615]})");
  REQUIRE(r);
  CHECK(r->hash_ids[0] == UINT64_MAX);
}

TEST_CASE("a whole number written as a float is a whole number") {
  const auto r =
      parse_record(R"({"timestamp":2.7e1,"input_length":1,"output_length":0,"hash_ids":[1]})");
  REQUIRE(r);
  CHECK(r->timestamp_ms == 27);
}

TEST_CASE("a malformed line says what is wrong with it") {
  CHECK(reason_of("{\"a\": x}").starts_with("not JSON at column 7: "));
  CHECK(says(reason_of("[1]"), "want an object"));
  CHECK(reason_of(R"({"timestamp":0})") == "no \"input_length\"");
  CHECK(says(reason_of(R"({"timestamp":-3,"input_length":1,"output_length":1,"hash_ids":[0]})"),
             "timestamp is -3"));
  CHECK(says(reason_of(R"({"timestamp":0.5,"input_length":1,"output_length":1,"hash_ids":[0]})"),
             "timestamp is 0.5"));
  CHECK(says(reason_of(R"({"timestamp":0,"input_length":0,"output_length":1,"hash_ids":[]})"),
             "input_length is 0"));
  CHECK(says(reason_of(R"({"timestamp":0,"input_length":10000001,"output_length":1,
                           "hash_ids":[]})"),
             "input_length is 10000001: want a whole number from 0 to 10000000"));
  CHECK(says(reason_of(R"({"timestamp":0,"input_length":"9","output_length":1,"hash_ids":[]})"),
             "input_length is \"9\""));
  CHECK(says(reason_of(R"({"timestamp":0,"input_length":1e300,"output_length":1,"hash_ids":[]})"),
             "input_length is 1e+300"));
  CHECK(says(reason_of(R"({"timestamp":0,"input_length":513,"output_length":1,"hash_ids":[0]})"),
             "1 hash_ids for input_length 513: want 2, one for each 512 tokens"));
  CHECK(says(reason_of(R"({"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[-1]})"),
             "hash_ids[0] is -1"));
  CHECK(says(reason_of(R"({"timestamp":0,"input_length":1,"output_length":1,"hash_ids":"0"})"),
             "hash_ids is string"));
}

TEST_CASE("bad lines are skipped, counted and the first few explained") {
  std::string text;
  for (int i = 0; i < 20; ++i) text += "nonsense\n";
  text += std::string("\n") + kGood + "\r\n" + kGood;  // blank, CRLF, no newline at the end
  const auto trace = parse_trace(text, "t.jsonl", {.reasons_max = 3});
  REQUIRE(trace);
  CHECK(trace->records.size() == 2);
  CHECK(trace->lines == 22);
  CHECK(trace->skipped == 20);
  REQUIRE(trace->bad.size() == 3);
  CHECK(trace->bad[2].line == 3);
  CHECK(!trace->bad[2].reason.empty());
}

TEST_CASE("strict reading refuses the first bad line by file and number") {
  const auto trace = parse_trace(std::string(kGood) + "\nnonsense\n", "t.jsonl", {.strict = true});
  REQUIRE(!trace);
  CHECK(trace.error().code == Code::kInvalid);
  CHECK(trace.error().what.starts_with("t.jsonl:2: "));
}

TEST_CASE("lines out of order are sorted and counted, or refused when strict") {
  const auto line = [](int ms) {
    return "{\"timestamp\":" + std::to_string(ms) +
           ",\"input_length\":1,\"output_length\":1,\"hash_ids\":[" + std::to_string(ms) + "]}\n";
  };
  const std::string text = line(5) + line(1) + line(7) + line(6);
  const auto trace = parse_trace(text, "t");
  REQUIRE(trace);
  CHECK(trace->out_of_order == 2);
  CHECK(trace->records[0].timestamp_ms == 1);
  CHECK(trace->records[2].timestamp_ms == 6);
  CHECK(trace->first_out_of_order.line == 2);
  const auto strict = parse_trace(text, "t", {.strict = true});
  REQUIRE(!strict);
  CHECK(strict.error().what ==
        "t:2: timestamp 1 is before the 5 of an earlier line: sort the lines by timestamp, or have "
        "it done without --strict");
}

TEST_CASE("times since 1970 become times since the first request") {
  const auto line = [](uint64_t ms) {
    return "{\"timestamp\":" + std::to_string(ms) +
           ",\"input_length\":1,\"output_length\":1,\"hash_ids\":[1]}\n";
  };
  const auto trace = parse_trace(line(1'790'000'000'500) + line(1'790'000'000'000), "t");
  REQUIRE(trace);
  CHECK(trace->records[0].timestamp_ms == 0);
  CHECK(trace->records[1].timestamp_ms == 500);
  const auto late = parse_trace(line(kSince1970 - 1), "t");
  REQUIRE(late);
  CHECK(late->records[0].timestamp_ms == kSince1970 - 1);
}

TEST_CASE("prompts longer than the context are reported with line, length and limit") {
  const std::string text =
      "{\"timestamp\":0,\"input_length\":512,\"output_length\":1,\"hash_ids\":[0]}\n"
      "{\"timestamp\":0,\"input_length\":513,\"output_length\":1,\"hash_ids\":[0,1]}\n";
  const auto trace = parse_trace(text, "t", {.input_max = 512, .model = "small"});
  REQUIRE(trace);
  CHECK(trace->records.size() == 1);
  REQUIRE(trace->skipped == 1);
  CHECK(trace->bad[0].line == 2);
  CHECK(says(trace->bad[0].reason, "input_length is 513: small has room for 512 tokens"));
  CHECK(!parse_trace(text, "t", {.strict = true, .input_max = 512, .model = "small"}));
  CHECK(parse_trace(text, "t", {.strict = true, .input_max = 513, .model = "small"}));
}

TEST_CASE("a limit counts good lines and stops reading") {
  const auto trace =
      parse_trace("x\n" + std::string(kGood) + "\n" + kGood + "\nx\n", "t", {.limit = 1});
  REQUIRE(trace);
  CHECK(trace->records.size() == 1);
  CHECK(trace->skipped == 1);
}

TEST_CASE("an endless line is one bad line, not endless memory") {
  const std::string text = std::string(kLineBytesMax + 9, '[') + "\n" + kGood + "\n";
  const auto trace = parse_trace(text, "t");
  REQUIRE(trace);
  CHECK(trace->records.size() == 1);
  CHECK(trace->skipped == 1);
  CHECK(says(trace->bad[0].reason, "longer than"));
}

TEST_CASE("a file that is missing, a directory, empty or all nonsense is an error that names it") {
  CHECK(read_trace("/nowhere/t.jsonl").error().code == Code::kNotFound);
  CHECK(says(read_trace("/nowhere/t.jsonl").error().what, "/nowhere/t.jsonl"));
  CHECK(says(read_trace("/tmp").error().what, "directory"));
  CHECK(says(parse_trace("", "t").error().what, "t holds no requests"));
  CHECK(says(parse_trace("a\nb\n", "t").error().what, "none of 2 lines is a request; line 1"));
  CHECK(says(parse_trace("TIMESTAMP,in,out\n1,2,3\n", "t").error().what, "synth --from"));
  CHECK(
      says(parse_trace("TIMESTAMP,in,out\n", "t", {.strict = true}).error().what, "synth --from"));
  CHECK(!says(parse_trace("{\"timestamp\": 1, \n", "t").error().what, "synth --from"));
}

TEST_CASE("a written trace reads back equal") {
  const std::string path = (std::filesystem::temp_directory_path() /
                            ("mc-records-test." + std::to_string(::getpid()) + ".jsonl"))
                               .string();
  std::vector<TraceRequest> records = {prompt({0, 1, 2}, 511), prompt({0, 9})};
  records[1].timestamp_ms = 3000;
  REQUIRE(write_trace(path, records));
  const auto back = read_trace(path, {.strict = true});
  std::filesystem::remove(path);
  REQUIRE(back);
  CHECK(back->records == records);
  CHECK(write_trace("/nowhere/t", records).error().code == Code::kNotFound);
}

TEST_CASE("a request may have a cache class") {
  const std::string line =
      "{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": [3]";
  const auto of = [&](const std::string& rest) { return parse_record(line + rest); };
  CHECK(of("}")->cache_class == CacheClass::kNormal);
  CHECK(of(", \"class\": \"context\"}")->cache_class == CacheClass::kContext);
  const auto once = of(", \"class\": \"ephemeral\"}");
  REQUIRE(once);
  CHECK(*parse_record(record_line(*once)) == *once);
  CHECK(of(", \"class\": \"rare\"}").error().what.find("class is") == 0);
  CHECK(!of(", \"class\": 1}"));
}

TEST_CASE("the recorded trace is read whole and without complaint") {
  const auto path = recorded_conversation();
  if (!path) return;
  const auto trace = read_trace(*path, {.strict = true});
  REQUIRE(trace);
  CHECK(trace->records.size() == 12031);
}

}  // namespace
}  // namespace mc::trace

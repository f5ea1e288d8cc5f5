#include "serve/external/engine_metrics.h"

#include <algorithm>
#include <charconv>

namespace mc::serve {
namespace {

constexpr double kEngineValueMax = 1e9;  // no engine has more of anything that is read here

// NAME{LABELS} VALUE [TIME]
struct Sample {
  std::string_view name, labels;
  double value = 0;
};

std::optional<Sample> parse_sample(std::string_view line) {
  Sample s;
  const size_t end = line.find_first_of("{ ");
  if (end == line.npos) return std::nullopt;
  s.name = line.substr(0, end);
  size_t at = end;
  if (line[end] == '{') {
    const size_t close = line.rfind('}');
    if (close == line.npos) return std::nullopt;
    s.labels = line.substr(end + 1, close - end - 1);
    at = close + 1;
  }
  at = std::min(line.find_first_not_of(' ', at), line.size());
  const auto [rest, error] = std::from_chars(line.data() + at, line.data() + line.size(), s.value);
  if (error != std::errc() || !(s.value >= 0 && s.value <= kEngineValueMax)) return std::nullopt;
  return s;
}

std::optional<uint64_t> number_label(std::string_view labels, std::string_view name) {
  for (size_t at = labels.find(name); at != labels.npos; at = labels.find(name, at + 1)) {
    const bool whole = at == 0 || labels[at - 1] == ',';
    const size_t value = at + name.size() + 2;  // ="
    if (!whole || value > labels.size() || labels[at + name.size()] != '=') continue;
    uint64_t n = 0;
    const char* const end = labels.data() + labels.size();
    if (std::from_chars(labels.data() + value, end, n).ec == std::errc()) return n;
  }
  return std::nullopt;
}

void take_sample(const Sample& s, EngineMetrics& m) {
  const auto sum = [&](std::optional<double>& all) { all = all.value_or(0) + s.value; };
  if (s.name == "vllm:num_requests_running" || s.name == "sglang:num_running_reqs") {
    sum(m.running);
  } else if (s.name == "vllm:num_requests_waiting" || s.name == "sglang:num_queue_reqs") {
    sum(m.waiting);
  } else if (s.name == "vllm:kv_cache_usage_perc" || s.name == "sglang:token_usage") {
    m.kv_usage = std::max(m.kv_usage.value_or(0), s.value);
  } else if (s.name == "vllm:cache_config_info") {
    m.block_tokens = number_label(s.labels, "block_size");
    m.blocks = number_label(s.labels, "num_gpu_blocks");
  }
}

}  // namespace

EngineMetrics parse_engine_metrics(std::string_view text) {
  EngineMetrics m;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!line.starts_with("vllm:") && !line.starts_with("sglang:")) continue;
    if (const auto sample = parse_sample(line)) take_sample(*sample, m);
  }
  return m;
}

}  // namespace mc::serve

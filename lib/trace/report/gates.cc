// Evaluates --require: expressions over a summary.
#include <cmath>

#include "base/options.h"
#include "base/units.h"
#include "trace/report/report.h"

namespace mc::trace {
namespace {

using Value = std::optional<double>;

struct Figure {
  const char* name;
  Value (*of)(const Summary&);
};

Value counted(uint64_t n) { return static_cast<double>(n); }
Value counted(const std::optional<uint64_t>& n) { return n ? counted(*n) : std::nullopt; }

constexpr Figure kFigures[] = {
    {"sent", [](const Summary& s) { return counted(s.sent); }},
    {"ok", [](const Summary& s) { return counted(s.ok); }},
    {"rejected", [](const Summary& s) { return counted(s.rejected); }},
    {"failed", [](const Summary& s) { return counted(s.failed); }},
    {"timeout", [](const Summary& s) { return counted(s.timeout); }},
    {"cancelled", [](const Summary& s) { return counted(s.cancelled); }},
    {"kv-errors", [](const Summary& s) { return counted(s.kv_errors); }},
    {"hit-tokens", [](const Summary& s) { return counted(s.hit_tokens); }},
    {"hit-ratio", [](const Summary& s) { return s.hit_ratio_tokens(); }},
    {"effective", [](const Summary& s) { return s.effective_ratio; }},
    {"goodput", [](const Summary& s) { return s.goodput_rps; }},
    {"completed", [](const Summary& s) { return s.completed_rps; }},
    {"offered", [](const Summary& s) { return s.offered_rps; }},
};

struct Metric {
  const char* name;
  const Distribution Summary::*of;
  double scale;  // from milliseconds
};

constexpr Metric kMetrics[] = {
    {"lag_ms", &Summary::lag_ms, 1},
    {"ttft_s", &Summary::ttft_ms, 1e-3},
    {"queue_s", &Summary::queue_ms, 1e-3},
    {"prefill_s", &Summary::prefill_ms, 1e-3},
    {"transfer_s", &Summary::transfer_ms, 1e-3},
    {"first_step_s", &Summary::first_step_ms, 1e-3},
    {"tbt_ms", &Summary::tbt_ms, 1},
    {"tpot_ms", &Summary::tpot_ms, 1},
    {"itl_ms", &Summary::itl_ms, 1},
    {"e2e_s", &Summary::e2e_ms, 1e-3},
};

// "p99", "mean", "min", "max"; NaN for any other word.
double statistic(const Distribution& d, std::string_view word) {
  if (word == "mean") return d.mean();
  if (word == "min") return d.min();
  if (word == "max") return d.max();
  if (word.starts_with("p")) {
    const auto percent = parse_number(word.substr(1));
    if (percent && *percent >= 0 && *percent <= 100) return d.percentile(*percent);
  }
  return NAN;
}

Failure unknown(const std::string& left) {
  std::vector<std::string> names;
  for (const Figure& f : kFigures) names.push_back(f.name);
  for (const Metric& m : kMetrics) names.push_back(std::string("p99.") + m.name);
  const std::string near = nearest(left, names);
  std::string all;
  for (const std::string& n : names) all += " " + n;
  return near.empty() ? fail(Code::kInvalid, "--require '%s': unknown figure; there are:%s",
                             escape(left).c_str(), all.c_str())
                      : fail(Code::kInvalid, "--require '%s': unknown figure: did you mean '%s'?",
                             escape(left).c_str(), near.c_str());
}

Result<Value> figure(const Summary& s, const std::string& left) {
  for (const Figure& f : kFigures)
    if (left == f.name) return f.of(s);
  const size_t dot = left.rfind('.');
  if (dot == std::string::npos) return unknown(left);
  for (const Metric& m : kMetrics) {
    if (std::string_view(left).substr(dot + 1) != m.name) continue;
    const double v = statistic(s.*m.of, std::string_view(left).substr(0, dot));
    if (std::isnan(v)) return unknown(left);
    return (s.*m.of).empty() ? Value() : Value(v * m.scale);
  }
  return unknown(left);
}

std::string trimmed(std::string_view s) {
  const size_t from = s.find_first_not_of(" \t");
  if (from == std::string_view::npos) return {};
  return std::string(s.substr(from, s.find_last_not_of(" \t") - from + 1));
}

bool holds(double left, std::string_view op, double right) {
  if (op == "<=") return left <= right;
  if (op == ">=") return left >= right;
  if (op == "==") return left == right;
  if (op == "!=") return left != right;
  return op == "<" ? left < right : left > right;
}

}  // namespace

Result<Gate> check_gate(const Summary& summary, const std::string& expr) {
  for (const std::string_view op : {"<=", ">=", "==", "!=", "<", ">"}) {  // longer ones first
    const size_t at = expr.find(op);
    if (at == std::string::npos) continue;
    MC_TRY(const Value left, figure(summary, trimmed(std::string_view(expr).substr(0, at))));
    const auto right = parse_number(trimmed(std::string_view(expr).substr(at + op.size())));
    if (!right)
      return fail(Code::kInvalid, "--require '%s': %s", escape(expr).c_str(),
                  right.error().what.c_str());
    return Gate{expr, left && holds(*left, op, *right)};
  }
  return fail(Code::kInvalid, "--require '%s': want FIGURE<=NUMBER, as effective>=0.95",
              escape(expr).c_str());
}

Result<> check_gate_syntax(const std::string& expr) {
  MC_TRY_(check_gate(Summary{}, expr));
  return {};
}

}  // namespace mc::trace

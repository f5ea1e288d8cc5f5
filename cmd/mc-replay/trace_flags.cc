#include "cmd/mc-replay/trace_flags.h"

#include "base/log.h"

namespace mc::replay {
namespace {
using ull = unsigned long long;
}

void TraceFlags::describe(OptionList& v) {
  v("trace", trace, "trace file (JSONL); also the first word");
  v("speed", speed, "divide the trace's times by this; 0: all at once");
  v("qps", qps, "requests a second instead of the trace's times (Poisson, or as --arrival says)");
  v("arrival", arrival, "trace, poisson, uniform or gamma:CV; all but trace need --qps");
  v("limit", limit, "play only this many requests; 0: all");
  v("window", window, "play only seconds A:B of the trace");
  v("seed", seed, "of random arrivals, and of all else that is random");
  v("block", block, "tokens of a hash id");
  v("strict", strict, "refuse the first malformed trace line; else skip and count");
}

Result<trace::PlayOptions> TraceFlags::play() const {
  trace::PlayOptions out;
  MC_TRY_(trace::parse_arrival(arrival, out));
  if (!window.empty()) MC_TRY_(trace::parse_window(window, out));
  out.speed = speed;
  out.qps = qps;
  out.seed = seed;
  out.limit = limit;
  return out;
}

Result<trace::Trace> TraceFlags::read(const char* verb, const cost::ModelSpec* model) const {
  MC_TRY_(check_one_trace(positional, trace));
  if (path().empty())
    return fail(Code::kInvalid, "no trace: give a file, as mc-replay %s FILE", verb);
  if (block < 1 || block > trace::kLengthMax)
    return fail(Code::kInvalid, "--block must be 1 to %llu tokens",
                static_cast<ull>(trace::kLengthMax));
  trace::ReadOptions options;
  options.strict = strict;
  options.block_tokens = block;
  if (model) {
    options.input_max = model->context_max;
    options.model = model->name;
  }
  return read_and_warn(path(), options);
}

Result<> check_one_trace(const std::string& positional, const std::string& trace) {
  if (positional.empty() || trace.empty()) return {};
  return fail(Code::kInvalid, "two traces, %s and --trace %s: leave one out", positional.c_str(),
              trace.c_str());
}

Result<trace::Trace> read_and_warn(const std::string& path, const trace::ReadOptions& options) {
  MC_TRY(trace::Trace out, trace::read_trace(path, options));
  if (out.skipped)
    log_warn("replay", "%s: skipped %llu malformed lines; the first is line %llu: %s", path.c_str(),
             static_cast<ull>(out.skipped), static_cast<ull>(out.bad[0].line),
             out.bad[0].reason.c_str());
  if (out.out_of_order)
    log_warn("replay", "%s: sorted %llu lines into their place; the first is line %llu: %s",
             path.c_str(), static_cast<ull>(out.out_of_order),
             static_cast<ull>(out.first_out_of_order.line), out.first_out_of_order.reason.c_str());
  return out;
}

}  // namespace mc::replay

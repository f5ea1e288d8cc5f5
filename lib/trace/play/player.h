// Turns a trace into requests to send: their due times and prompt tokens.
//
// Due times depend on the trace, the options and the seed only, never on the server: the load is
// open. Prompts are made from the hash ids: the same id is always the same tokens, and two ids are
// never the same block, so real caches find exactly the prefixes of the trace.
//
// Thread: values; Prompts is constant after make() and safe from any thread.
// Pure: no clock, no I/O.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "trace/records/records.h"

namespace mc::trace {

enum class Arrival {
  kTrace,    // recorded times, divided by the speed
  kPoisson,  // this and those below need a rate (qps)
  kUniform,  // evenly spaced
  kGamma,    // gamma gaps with coefficient of variation `cv`: burstier than Poisson above 1
};

struct PlayOptions {
  Arrival arrival = Arrival::kTrace;
  double speed = 1;    // kTrace: 2 is twice as fast; 0: everything is due at once
  double qps = 0;      // requests a second; with kTrace it means kPoisson
  double cv = 1;       // kGamma
  uint64_t seed = 0;   // of random arrivals
  uint64_t limit = 0;  // at most this many requests, after the window; 0: all
  // Seconds of trace time [from, to): only these requests, shifted so that `from` is 0.
  double window_from_s = 0;
  std::optional<double> window_to_s = std::nullopt;
};

struct Arrived {
  uint64_t id = 0;                       // position in trace.records, for any window and limit
  Duration due{};                        // after the start of the replay
  const TraceRequest* record = nullptr;  // the trace's
};

// "trace", "poisson", "uniform", "gamma:CV" set arrival and cv.
Result<> parse_arrival(std::string_view text, PlayOptions& options);
// "A:B", "A:", ":B" in seconds of trace time.
Result<> parse_window(std::string_view text, PlayOptions& options);

// In order of `due`. Errors: kInvalid for invalid options, and for options that leave no request.
Result<std::vector<Arrived>> schedule(const Trace& trace, const PlayOptions& options);

struct PromptOptions {
  uint64_t seed = 0;
  uint64_t vocab = 32000;  // tokens are in [0, vocab)
  uint64_t block_tokens = kBlockTokens;
};

class Prompts {
 public:
  // Errors: kInvalid for a vocabulary so small that a block cannot hold a 64-bit id.
  static Result<Prompts> make(const PromptOptions& options);

  // The token at `position` (below block_tokens) of the block `hash_id`. The first few spell a
  // permutation of the id in base `vocab`, which is why two ids never give equal blocks.
  int32_t token(uint64_t hash_id, uint64_t position) const;
  // The whole prompt: exactly record.input_length tokens.
  std::vector<int32_t> tokens(const TraceRequest& record) const;

 private:
  explicit Prompts(const PromptOptions& options);
  void append(uint64_t hash_id, uint64_t n, std::vector<int32_t>& out) const;
  PromptOptions options_;
  uint64_t digits_ = 0;  // how many tokens spell an id
};

}  // namespace mc::trace

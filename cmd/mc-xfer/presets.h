// mc-xfer bench --preset: repeats the papers' experiments. Our behaviour and an older one take
// turns, and the report prints our ratio and the published one.
#pragma once
#include <string>

#include "cmd/command.h"
#include "cmd/mc-xfer/client.h"

namespace mc::xfer {

// fig3, fig4: slice spraying against 64 KiB slices at random over the rails (TENT paper, figures 3
// and 4), over tcp. fig20: the engine against one plain tcp stream (Mooncake paper, figure 20).
Result<int> run_preset(const std::string& preset, const ClientOptions& options, Duration duration,
                       const Context& context);
// "spray", "random", "round-robin" or "static".
Scheduler scheduler_of(const std::string& name);

}  // namespace mc::xfer

#include "cmd/mc-xfer/scratch.h"

#include <cstdio>
#include <utility>

#include "rpc/client.h"
#include "xfer/core/scratch_memory.h"

namespace mc::xfer {

Result<> ask_scratch(Client& client, const ClientOptions& options) {
  constexpr Duration kBudget = std::chrono::seconds(3);
  client.target = options.target;
  client.scratch = options.overwrite ? UINT64_MAX : 0;
  if (options.overwrite) return {};
  MC_TRY(const auto peer, rpc::SyncClient::connect(options.target, client.clock));
  const auto answer = peer->call(AskScratch{}, kBudget);
  if (answer) client.scratch = answer->bytes;
  if (!answer && answer.error().code != Code::kUnsupported) return fail(answer.error());
  return {};
}

Result<bool> may_fill(Client& client, uint64_t bytes, bool writes) {
  if (bytes <= client.scratch) return true;
  if (writes)
    return fail(Code::kInvalid,
                "--op: writes would destroy what %s holds: --op read leaves it as it is, mc-xfer "
                "serve offers memory to be overwritten, and --overwrite overwrites any",
                client.target.c_str());
  if (!std::exchange(client.told, true))
    std::fprintf(stderr, "%s does not offer its memory to be overwritten: nothing is checked\n",
                 client.target.c_str());
  return false;
}

}  // namespace mc::xfer

#include "rules.h"

namespace mc::emu {
namespace {

bool fits(const Rule& rule, const Victim& victim) {
  return rule.id != 0 && (rule.nic < 0 || uint32_t(rule.nic) == victim.nic) &&
         (rule.opcodes == 0 || (rule.opcodes >> victim.opcode & 1) != 0) &&
         (rule.qp_number == 0 || rule.qp_number == victim.qp_number) &&
         victim.bytes >= rule.bytes_min && rule.count > 0;
}

// splitmix64: the same seed strikes the same requests.
uint64_t next_random(uint64_t& state) {
  state += 0x9e37'79b9'7f4a'7c15;
  uint64_t z = state;
  z = (z ^ z >> 30) * 0xbf58'476d'1ce4'e5b9;
  z = (z ^ z >> 27) * 0x94d0'49bb'1331'11eb;
  return z ^ z >> 31;
}

}  // namespace

Fate judge(Layout& layout, const Victim& victim) {
  if (layout.rules_set.load(std::memory_order_acquire) == 0) return {};
  Held held(layout.rules_lock);
  for (Rule& rule : layout.rules) {
    if (!fits(rule, victim)) continue;
    if (rule.skip > 0) {
      --rule.skip;
      continue;
    }
    if (next_random(rule.random) % 1'000'000 >= rule.per_million) continue;
    if (rule.count != UINT64_MAX) --rule.count;
    ++rule.hits;
    return {true, rule.action, rule.argument};
  }
  return {};
}

}  // namespace mc::emu

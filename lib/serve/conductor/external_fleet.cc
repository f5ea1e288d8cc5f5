#include "serve/conductor/external_fleet.h"

#include <algorithm>
#include <map>
#include <utility>

#include "serve/conductor/pair_bodies.h"

namespace mc::serve {
namespace {

constexpr Duration kUpstreamSlack = std::chrono::seconds(2);

bool knows_text_only(const GenerateRequest& ask) {
  return ask.proxied && ask.engine_tokens().empty();
}

// Of the prompt's blocks, as that engine's events make them.
std::vector<uint64_t> engine_tags(const GenerateRequest& ask, const ExternalEngine& e) {
  const std::string salt =
      e.cache->chain_salt(ask.proxied ? ask.proxied->adapter : "", ask.cache_salt);
  const std::span<const int32_t> tokens = ask.engine_tokens();
  const uint64_t block = e.cache->block_tokens();
  std::vector<uint64_t> tags;
  if (!ask.proxied || ask.proxied->media.empty()) {
    for (const BlockHash& h : chain_hashes(tokens, block, salt)) tags.push_back(h.tag());
    return tags;
  }
  std::span<const MediaItem> media = ask.proxied->media;
  BlockHash parent = chain_root(salt);
  for (uint64_t at = 0; at + block <= tokens.size(); at += block) {
    while (!media.empty() && media[0].begin + media[0].length <= at) media = media.subspan(1);
    std::string content;
    for (const MediaItem& item : media) {
      if (item.begin >= at + block) break;
      add_picture(content, item.name, static_cast<int64_t>(item.begin) - static_cast<int64_t>(at));
    }
    parent = ExternalCache::chain(parent, tokens.subspan(at, block), content);
    tags.push_back(parent.tag());
  }
  return tags;
}

// Both halves of the pair have a part in it.
bool for_both(const ExternalEngine& first, const GenerateRequest& ask) {
  return ask.proxied &&
         use_of(first.options.pair, *ask.proxied, first.names_blocks) == PairUse::kBoth;
}

// The second half of a pair computes such a request itself, whether or not a first half is up.
bool serves_alone(const ExternalEngines& engines, const ExternalEngine& second,
                  const ProxiedRequest& request) {
  if (second.options.role != "decode") return false;
  const bool names_blocks =
      std::any_of(engines.all().begin(), engines.all().end(), [&](const auto& e) {
        return e.second->names_blocks && are_halves(e.second->options, second.options);
      });
  return use_of(second.options.pair, request, names_blocks) == PairUse::kSecondAlone;
}

}  // namespace

bool may_serve(const ExternalEngines& engines, const std::string& model,
               const ProxiedRequest& request) {
  return engines.up(model) > 0 ||
         std::any_of(engines.all().begin(), engines.all().end(), [&](const auto& e) {
           return e.second->up && e.second->options.serves == model &&
                  serves_alone(engines, *e.second, request);
         });
}

ExternalFleet::ExternalFleet(ExternalEngines& engines, sched::PrefixIndex& index, std::string model,
                             std::function<size_t()> slots, AskOf ask_of)
    : engines_(engines),
      index_(index),
      model_(std::move(model)),
      slots_(std::move(slots)),
      ask_of_(std::move(ask_of)) {}

bool ExternalFleet::is_up(const std::string& engine) const {
  const ExternalEngine* const e = engines_.find(engine);
  return e != nullptr && e->up;
}

void ExternalFleet::add(uint64_t request, const sched::Exclusions& out, sched::View& to,
                        Time now) const {
  add(ask_of_(request), &out, to, now);
}

void ExternalFleet::add(const GenerateRequest& ask, const sched::Exclusions* out, sched::View& to,
                        Time now) const {
  const std::string adapter = ask.proxied ? ask.proxied->adapter : "";
  const std::string& model = ask.proxied ? ask.proxied->base : model_;
  std::map<std::pair<uint64_t, std::string>, std::vector<uint32_t>> matches;  // by block and salt
  for (const auto& [name, e] : engines_.all()) {
    if (e->options.url.empty() || e->options.serves != model) continue;
    if (e->options.role == "decode" &&
        !(e->up && ask.proxied && serves_alone(engines_, *e, *ask.proxied)))
      continue;
    sched::PrefillView node;
    node.name = name;
    node.usable = e->up && !e->outliers.ejected(now) && engines_.has_adapter(*e, adapter) &&
                  !(out != nullptr && (out->full.contains(name) || !ask.proxied));
    const ExternalEngine* decodes = e.get();
    if (e->options.role == "prefill") {
      decodes = partner(*e, out, now);
      node.usable = node.usable && decodes != nullptr && engines_.has_adapter(*decodes, adapter) &&
                    for_both(*e, ask);
    }
    node.whole = true;
    e->ledger.pass(now);
    node.queue_ms = e->wait_ms(now);
    node.rate = &e->rate;
    node.queued_tokens = e->ledger.tokens();
    node.requests = e->requests;
    node.assigned = e->assigned;
    if (decodes != nullptr) node.context_tokens = decodes->context_tokens;
    const uint64_t block = e->cache ? e->cache->block_tokens() : 0;
    if (knows_text_only(ask)) {
      node.match = engines_.affinity().match(ask.proxied->pieces, e->registration);
      node.block_tokens = TextAffinity::kPieceTokens;
    } else if (block > 0) {
      const std::pair key(block, e->cache->chain_salt(adapter, ask.cache_salt));
      auto it = matches.find(key);
      if (it == matches.end())
        it = matches.emplace(key, index_.match(engine_tags(ask, *e), slots_())).first;
      node.match = it->second[e->cache->slot()];
      node.block_tokens = block;
    }
    to.prefill.push_back(std::move(node));
  }
}

// Prefers one that has not failed this request. Never one that had no room for it, or is ejected.
ExternalEngine* ExternalFleet::partner(const ExternalEngine& prefill, const sched::Exclusions* out,
                                       Time now) const {
  const auto room = [&](const std::string& name) {
    const ExternalEngine* const e = engines_.find(name);
    return (out == nullptr || !out->full.contains(name)) && e != nullptr &&
           !e->outliers.ejected(now);
  };
  ExternalEngine* const good = engines_.partner(prefill, [&](const std::string& name) {
    return room(name) && (out == nullptr || !out->avoid.contains(name));
  });
  return good != nullptr ? good : engines_.partner(prefill, room);
}

sched::EnginePair ExternalFleet::charge(uint64_t request, const sched::Decision& decision,
                                        const sched::Exclusions& out, Time now, Time until) {
  const GenerateRequest& ask = ask_of_(request);
  const sched::Candidate& c = decision.chosen;
  ExternalEngine& e = *engines_.find(c.name);
  const bool pair = e.options.role == "prefill";
  ExternalEngine& decodes = pair ? *partner(e, &out, now) : e;  // add() found it
  e.ledger.charge(request, c.prefill_ms, ask.tokens() - c.reused_tokens, now);
  // An answer that is no stream says nothing of its prompt's end before all of it is there.
  if (!pair && ask.proxied && !ask.proxied->stream) e.ledger.silent(request);
  ++e.assigned;
  ++e.requests;
  decodes.context_tokens += ask.tokens();
  if (pair) {
    ++decodes.assigned;
    ++decodes.requests;
  }
  if (knows_text_only(ask))
    engines_.affinity().sent(ask.proxied->pieces, e.registration);
  else if (e.cache && e.cache->block_tokens() > 0)
    guesses_[request] = index_.guess(e.cache->slot(), engine_tags(ask, e), until + kUpstreamSlack);
  return {e.options.name, pair ? decodes.options.name : "", pair && at_once(e.options.pair)};
}

void ExternalFleet::computed(uint64_t request, const sched::EnginePair& pair, Time now) {
  if (ExternalEngine* const e = engines_.find(pair.engine)) e->ledger.finish(request, now);
  if (const auto it = guesses_.find(request); it != guesses_.end())
    index_.prolong(it->second, now + kUpstreamSlack);
}

// Either engine may have been registered again since.
void ExternalFleet::refund(uint64_t request, const sched::EnginePair& pair, bool answered,
                           Time now) {
  ExternalEngine* const e = engines_.find(pair.engine);
  if (e != nullptr) {
    e->ledger.finish(request, now);
    if (e->requests > 0) --e->requests;
  }
  ExternalEngine* const decodes = pair.decode.empty() ? e : engines_.find(pair.decode);
  if (decodes != nullptr) {
    decodes->context_tokens -= std::min(decodes->context_tokens, ask_of_(request).tokens());
    if (decodes != e && decodes->requests > 0) --decodes->requests;
  }
  const auto it = guesses_.find(request);
  if (it == guesses_.end()) return;
  if (!answered) index_.withdraw(it->second);  // else it stands until it ends, or events confirm it
  guesses_.erase(it);
}

}  // namespace mc::serve

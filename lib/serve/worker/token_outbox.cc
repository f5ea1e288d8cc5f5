#include "serve/worker/token_outbox.h"

#include <algorithm>
#include <iterator>

namespace mc::serve {
namespace {

template <class T>
std::vector<T> part_of(const std::vector<T>& list, size_t from, size_t n) {
  const auto at = list.begin() + static_cast<std::ptrdiff_t>(from);
  return {at, at + static_cast<std::ptrdiff_t>(n)};
}
template <class T>
void move_to(std::vector<T>& to, std::vector<T>& from) {
  to.insert(to.end(), std::move_iterator(from.begin()), std::move_iterator(from.end()));
  from.clear();
}

constexpr Duration kTickMax = std::chrono::seconds(1);  // more: this process itself stood still
}  // namespace

void TokenOutbox::make_ready(const std::string& request, Kept& kept) {
  if (!std::exchange(kept.ready, true)) ready_.push_back(request);
}

void TokenOutbox::add(TokenUpdate update) {
  Kept& kept = requests_[update.request];
  move_to(kept.tokens, update.tokens);
  move_to(kept.logprobs, update.logprobs);
  kept.last = std::move(update);
  make_ready(kept.last.request, kept);
}

void TokenOutbox::drop(const std::string& request) {
  if (requests_.erase(request) > 0) std::erase(ready_, request);
}

std::optional<TokenOutbox::Message> TokenOutbox::next(Time now) {
  if (ready_.empty() || flight_.size() >= (failing_ ? 1 : options_.in_flight_max) ||
      (failing_ && now < retry_at_))
    return std::nullopt;
  Message message;
  message.id = next_id_++;
  std::vector<Part>& parts = flight_[message.id];
  size_t left = options_.tokens_max, done = 0;
  for (; done < ready_.size() && left > 0; ++done) {
    Kept& kept = requests_.at(ready_[done]);
    const size_t n = std::min(left, kept.tokens.size() - kept.sent);
    TokenUpdate u = kept.last;
    u.tokens = part_of(kept.tokens, kept.sent, n);
    if (!kept.logprobs.empty()) u.logprobs = part_of(kept.logprobs, kept.sent, n);
    u.first = kept.taken + static_cast<uint32_t>(kept.sent) + 1;
    kept.sent += n;
    left -= n;
    const bool whole = kept.sent == kept.tokens.size();
    kept.end_sent = whole && !u.finish.empty();
    if (!whole) u.finish.clear();
    parts.push_back({u.request, kept.taken + static_cast<uint32_t>(kept.sent), kept.end_sent});
    message.updates.push_back(std::move(u));
    if (!whole) break;  // the message is full
    kept.ready = false;
  }
  ready_.erase(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(done));
  return message;
}

std::vector<TokenOutbox::Part> TokenOutbox::take(uint64_t id) {
  const auto it = flight_.find(id);
  if (it == flight_.end()) return {};
  std::vector<Part> parts = std::move(it->second);
  flight_.erase(it);
  return parts;
}

void TokenOutbox::taken(uint64_t id) {
  failing_ = false;
  silent_ = {};
  for (const Part& part : take(id)) {
    const auto it = requests_.find(part.request);
    if (it == requests_.end()) continue;
    Kept& kept = it->second;
    if (part.upto > kept.taken) {
      const size_t n = part.upto - kept.taken;
      const auto taken = static_cast<std::ptrdiff_t>(n);
      kept.tokens.erase(kept.tokens.begin(), kept.tokens.begin() + taken);
      if (!kept.logprobs.empty())
        kept.logprobs.erase(kept.logprobs.begin(), kept.logprobs.begin() + taken);
      kept.sent -= std::min(n, kept.sent);
      kept.taken = part.upto;
    }
    if (part.end) drop(part.request);
  }
}

void TokenOutbox::lost(uint64_t id, Time now) {
  failing_ = true;
  retry_at_ = now + options_.retry;
  for (const Part& part : take(id)) {
    const auto it = requests_.find(part.request);
    if (it == requests_.end()) continue;
    Kept& kept = it->second;
    kept.sent = 0;
    kept.end_sent = false;
    if (kept.unsent()) make_ready(part.request, kept);
  }
}

bool TokenOutbox::tick(Time now) {
  const bool waits = !flight_.empty() || !ready_.empty();
  silent_ = waits ? silent_ + std::clamp<Duration>(now - ticked_, Duration::zero(), kTickMax)
                  : Duration::zero();
  ticked_ = now;
  return silent_ < options_.patience;
}

}  // namespace mc::serve

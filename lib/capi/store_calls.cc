#include "capi/store_calls.h"

#include <algorithm>
#include <utility>

namespace mc::capi {

using store::PutAs;
using store::PutOutcome;

namespace {
constexpr Duration kLeast = std::chrono::milliseconds(1);  // of a call whose time is over
}

CallHow& call_how() {
  static thread_local CallHow how;
  return how;
}

Result<std::unique_ptr<store::Client>> Clients::any() {
  {
    const Lock lock(mutex_);
    if (!idle_.empty()) {
      auto client = std::move(idle_.back());
      idle_.pop_back();
      return client;
    }
  }
  return first_->another(metrics_);
}

Result<Clients::Lease> Clients::take(std::atomic<bool>* stopped) {
  MC_TRY(auto client, any());
  store::CallLimits limits;
  const CallHow how = call_how();
  limits.timeout = how.timeout;
  limits.stopped = stopped;
  if (how.progress != nullptr && stopped != nullptr)
    limits.progress = [how, stopped](uint64_t done, uint64_t total) {
      if (how.progress(how.user, done, total) != 0) *stopped = true;
    };
  client->limits = std::move(limits);
  return Lease(*this, std::move(client));
}

void Clients::give(std::unique_ptr<store::Client> client) {
  client->limits = {};
  const Lock lock(mutex_);
  if (idle_.size() < kIdleMax) idle_.push_back(std::move(client));
}

Result<> queue_up(const mc_store& store, mc_queue* queue, uint64_t tag,
                  std::shared_ptr<StoreCall> call, Duration limit) {
  if (queue == nullptr) return fail(Code::kInvalid, "the queue is NULL");
  MC_TRY_(in_its_process(queue->mark));
  StoreCall* const raw = call.get();
  static const SteadyClock clock;
  CallHow how = call_how();
  if (limit > Duration::zero()) how.timeout = limit;
  if (how.timeout == Duration::zero()) how.timeout = store.options.timeout;
  const Time until = clock.now() + how.timeout + call->wait();
  const auto turn = [call = std::move(call), how, until](Duration hold) {
    call_how() = how;  // of the thread that queued it
    call_how().timeout = std::max(kLeast, std::min(how.timeout, until - clock.now()));
    const auto done = call->turn(hold);
    call_how() = {};
    return done;
  };
  return queue->calls->submit({tag, turn, [raw](const Error& why) { return raw->give_up(why); },
                               [raw](const Error& why) { return raw->late(why); },
                               [raw] { raw->stop(); }, until});
}

Result<> carry_out(const mc_store& store, mc_queue* queue, uint64_t tag,
                   const std::shared_ptr<StoreCall>& call) {
  if (queue != nullptr) return queue_up(store, queue, tag, call);
  (void)call->run();
  return {};
}

// The master checks keys. Here only what cannot be copied is refused.
Result<ObjectKey> key_of(const mc_key& key) {
  constexpr size_t kMost = 1 << 20;
  if (key.data == nullptr && key.bytes != 0)
    return fail(Code::kInvalid, "mc_key.data is NULL and mc_key.bytes is %zu", key.bytes);
  if (key.bytes > kMost)
    return fail(Code::kInvalid, "mc_key.bytes is %zu: want 1 to %zu", key.bytes,
                kObjectKeyBytesMax);
  return ObjectKey(key.data, key.bytes);
}

Result<std::vector<ObjectKey>> keys_of(const mc_key* keys, size_t count) {
  if (count > 0) MC_TRY_(need(keys, "keys"));
  std::vector<ObjectKey> out;
  out.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    MC_TRY(ObjectKey key, key_of(keys[i]));
    out.push_back(std::move(key));
  }
  return out;
}

// ---- puts

namespace {

struct PutHow {
  PutAs as;
  bool replace = false;
};

Result<PutHow> put_how(const mc_put_options* given, const store::ClientOptions& base) {
  PutHow how;
  how.as.tenant = base.tenant;
  how.as.config = base.put;
  if (given == nullptr) return how;
  MC_TRY(const mc_put_options o, sized(given, "mc_put_options"));
  if (o.cls > MC_CLASS_CONTEXT || o.pin > MC_PIN_HARD ||
      (o.flags & ~uint32_t{MC_PUT_PREFER_LOCAL | MC_PUT_REPLACE}) != 0)
    return fail(Code::kInvalid, "mc_put_options: cls %u, pin %u, flags %u: no such value", o.cls,
                o.pin, o.flags);
  constexpr const char* kClasses[] = {"", "normal", "ephemeral", "context"};
  constexpr const char* kPins[] = {"", "none", "soft", "hard"};
  store::PutConfig& config = how.as.config;
  if (o.cls != 0) config.cls = kClasses[o.cls];
  if (o.pin != 0) config.pin = kPins[o.pin];
  constexpr uint64_t kLongest = uint64_t{1} << 43;  // ms, 278 years
  if (o.ttl_ms > kLongest)
    return fail(Code::kInvalid, "mc_put_options.ttl_ms is over %llu",
                static_cast<unsigned long long>(kLongest));
  if (o.ttl_ms != 0) {
    config.ttl = std::chrono::milliseconds(o.ttl_ms);
    if (config.pin == "none" && config.cls != "context")
      return fail(
          Code::kInvalid,
          "mc_put_options.ttl_ms is %llu, and is of a pin or of a context: give pin soft or "
          "hard, or the class context, with it",
          static_cast<unsigned long long>(o.ttl_ms));
  }
  if (o.replicas > store::kReplicasMax)
    return fail(Code::kInvalid, "mc_put_options.replicas is %u: want 1 to %u, or 0: as the store",
                o.replicas, store::kReplicasMax);
  if (o.group != nullptr) config.group = o.group;
  if (o.tenant != nullptr) how.as.tenant = o.tenant;
  if (o.prefer != nullptr) how.as.prefer = o.prefer;
  if ((o.flags & MC_PUT_PREFER_LOCAL) != 0) config.prefer_local = true;
  how.as.replicas = o.replicas;
  how.replace = (o.flags & MC_PUT_REPLACE) != 0;
  return how;
}

uint64_t bytes_of(const store::PutItem& item) {
  uint64_t n = 0;
  for (const auto& part : item.parts) n += part.size();
  return n;
}

}  // namespace

PutCall::PutCall(mc_store& store, mc_put_result* results) : store_(store), results_(results) {}

Result<size_t> PutCall::group(const mc_put_options* options) {
  const auto seen = known_.find(options);
  if (seen != known_.end()) return seen->second;
  MC_TRY(PutHow how, put_how(options, store_.options));
  size_t at = 0;
  while (at < groups_.size() && !(groups_[at].as == how.as && groups_[at].replace == how.replace))
    ++at;
  if (at == groups_.size()) groups_.push_back({std::move(how.as), how.replace});
  known_.emplace(options, at);
  return at;
}

void PutCall::add(size_t group, size_t place, store::PutItem item) {
  groups_[group].items.push_back(std::move(item));
  groups_[group].places.push_back(place);
}

void PutCall::refuse(size_t place, const Error& why) { set(place, fail(why), 0, false); }

void PutCall::set(size_t place, const Result<PutOutcome>& outcome, uint64_t bytes, bool replace) {
  mc_put_result result{};
  if (!outcome) {
    result.code = static_cast<uint32_t>(report(outcome.error()));
  } else if (replace && *outcome == PutOutcome::kExisted) {
    result.code = static_cast<uint32_t>(
        report({Code::kBusy, "another client put the key while it was replaced"}));
  } else {
    result.outcome = static_cast<uint32_t>(*outcome);
    if (*outcome == PutOutcome::kStored) result.bytes = bytes;
  }
  if (result.code != MC_OK) ++done_.failed;
  done_.bytes += result.bytes;
  if (results_ != nullptr) results_[place] = result;
}

mc_done PutCall::give_up(const Error& why) {
  for (const Group& group : groups_)
    for (const size_t place : group.places) set(place, fail(why), 0, false);
  done_.code = static_cast<uint32_t>(why.code);
  return done_;
}

mc_done PutCall::late(const Error& why) {  // as when the master does not answer
  (void)give_up(why);
  done_.code = MC_OK;
  return done_;
}

mc_done PutCall::run() {
  const Duration limit = call_how().timeout;
  const Time until =
      store_.engine->clock.now() + (limit > Duration::zero() ? limit : store_.options.timeout);
  for (Group& group : groups_) run(group, until);
  if (stopped_ && done_.failed > 0) done_.code = MC_UNAVAILABLE;
  return done_;
}

// The master does not hold a removal while it rebuilds its view, as it does other calls.
std::vector<Result<>> PutCall::remove_waiting(store::Client& client,
                                              const std::vector<ObjectKey>& keys,
                                              const std::string& tenant, Time until) const {
  const auto unsure = [](const Result<>& r) { return !r && r.error().code == Code::kUnavailable; };
  for (;;) {
    auto removed = client.remove(keys, true, &tenant);
    if (std::none_of(removed.begin(), removed.end(), unsure) ||
        store_.engine->clock.now() >= until || stopped_ || !client.exists(keys))
      return removed;
  }
}

void PutCall::run(Group& group, Time until) {
  group.as.until = until;
  group.as.stopped = &stopped_;
  if (stopped_) {
    for (const size_t place : group.places)
      set(place, fail(Code::kUnavailable, "cancelled"), 0, false);
    return;
  }
  auto client = store_.clients.take(&stopped_);
  if (!client) {
    for (const size_t place : group.places) set(place, fail(client.error()), 0, false);
    return;
  }
  if (group.replace) {
    std::vector<ObjectKey> keys;
    for (const store::PutItem& item : group.items) keys.push_back(item.key);
    const auto removed = remove_waiting(**client, keys, group.as.tenant, until);
    Group rest{group.as, true};
    for (size_t i = 0; i < keys.size(); ++i) {
      if (!removed[i] && removed[i].error().code != Code::kNotFound) {
        set(group.places[i], fail(removed[i].error()), 0, true);
        continue;
      }
      rest.items.push_back(std::move(group.items[i]));
      rest.places.push_back(group.places[i]);
    }
    group = std::move(rest);
  }
  const auto outcomes = (*client)->put_batch(group.items, group.as);
  for (size_t i = 0; i < outcomes.size(); ++i)
    set(group.places[i], outcomes[i], bytes_of(group.items[i]), group.replace);
}

// ---- gets

namespace {
constexpr Duration kWaitAtOnce = std::chrono::milliseconds(200);
}

GetCall::GetCall(mc_store& store, Duration wait, mc_get_result* results)
    : store_(store), wait_(wait), until_(store.engine->clock.now() + wait), results_(results) {}

void GetCall::add(size_t place, store::GetItem item) {
  items_.push_back(std::move(item));
  places_.push_back(place);
}

void GetCall::refuse(size_t place, const Error& why) { set(place, fail(why), false); }

void GetCall::set(size_t place, const Result<uint64_t>& got, bool verified) {
  mc_get_result result{};
  if (!got) {
    result.code = static_cast<uint32_t>(report(got.error()));
  } else if (want_ != 0 && *got != want_) {
    result.code = static_cast<uint32_t>(
        report({Code::kCorrupt, strf("a value of %llu bytes for a block of %llu",
                                     static_cast<unsigned long long>(*got),
                                     static_cast<unsigned long long>(want_))}));
  } else {
    result.flags = verified ? MC_GET_VERIFIED : 0;
    result.bytes = *got;
  }
  if (result.code != MC_OK) ++done_.failed;
  done_.bytes += result.bytes;
  if (results_ != nullptr) results_[place] = result;
}

mc_done GetCall::give_up(const Error& why) {
  for (const size_t place : places_) set(place, fail(why), false);
  done_.code = static_cast<uint32_t>(why.code);
  return done_;
}

mc_done GetCall::late(const Error& why) {
  (void)give_up(why);
  done_.code = MC_OK;
  return done_;
}

// It waits a little at a time for what is not stored yet, so that it can be stopped.
mc_done GetCall::run() {
  for (;;)
    if (const auto done = turn(kWaitAtOnce)) return *done;
}

std::optional<mc_done> GetCall::turn(Duration hold) {
  auto client = store_.clients.take(&stopped_);
  if (!client) {
    for (const size_t place : places_) set(place, fail(client.error()), false);
    return done_;
  }
  const Duration left = std::max(until_ - store_.engine->clock.now(), Duration::zero());
  std::vector<bool> verified;
  const auto got = (*client)->get_batch(items_, std::min(left, hold), &verified);
  std::vector<store::GetItem> missing;
  std::vector<size_t> places;
  for (size_t i = 0; i < got.size(); ++i) {
    if (left <= hold || got[i] || got[i].error().code != Code::kNotFound) {
      set(places_[i], got[i], verified[i]);
      continue;
    }
    missing.push_back(std::move(items_[i]));
    places.push_back(places_[i]);
  }
  items_ = std::move(missing);
  places_ = std::move(places);
  if (stopped_ && done_.failed > 0) done_.code = MC_UNAVAILABLE;
  if (items_.empty()) return done_;
  if (stopped_) return give_up({Code::kUnavailable, "cancelled"});
  return std::nullopt;
}

// ---- others

Result<> ExistsCall::ask() {
  MC_TRY(const auto client, store_.clients.take());
  MC_TRY(const auto there, client->exists(keys_));
  for (size_t i = 0; i < keys_.size(); ++i) found_[i] = there[i] ? 1 : 0;
  return {};
}

mc_done ExistsCall::run() {
  if (const auto asked = ask(); !asked) return give_up(asked.error());
  return {0, MC_OK, static_cast<uint32_t>(std::count(found_, found_ + keys_.size(), 0)), 0};
}

mc_done ExistsCall::give_up(const Error& why) {
  return {0, static_cast<uint32_t>(report(why)), static_cast<uint32_t>(keys_.size()), 0};
}

mc_done AskCall::run() {
  const auto failed = ask_();
  return failed ? mc_done{0, MC_OK, *failed, 0} : give_up(failed.error());
}

mc_done AskCall::give_up(const Error& why) { return {0, static_cast<uint32_t>(report(why)), 1, 0}; }

Result<> remove_all(mc_store& store, const std::vector<ObjectKey>& keys, bool force,
                    mc_code* codes) {
  MC_TRY(const auto client, store.clients.take());
  const auto outcomes = client->remove(keys, force);
  for (size_t i = 0; i < keys.size(); ++i)
    codes[i] = outcomes[i] ? MC_OK : report(outcomes[i].error());
  return {};
}

}  // namespace mc::capi

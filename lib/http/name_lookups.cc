#include "http/name_lookups.h"

#include <netdb.h>

#include <cstring>
#include <exception>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

namespace mc::http {
namespace {

constexpr size_t kThreadsMax = 16;

Result<SocketAddresses> ask_system(const io::Address& address, int flags) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  const int rc =
      getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (rc != 0)
    return fail(Code::kUnavailable, "look up '%s': %s", address.host.c_str(), gai_strerror(rc));
  SocketAddresses all;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    SocketAddress& one = all.emplace_back();
    std::memcpy(&one.at, a->ai_addr, a->ai_addrlen);
    one.size = a->ai_addrlen;
  }
  freeaddrinfo(found);
  return all;
}

std::string_view bytes_of(const SocketAddress& a) {
  return {reinterpret_cast<const char*>(&a.at), a.size};
}

}  // namespace

bool operator==(const SocketAddress& a, const SocketAddress& b) {
  return bytes_of(a) == bytes_of(b);
}

Result<SocketAddresses> look_up(const io::Address& address) { return ask_system(address, 0); }
SocketAddresses look_up_number(const io::Address& address) {
  return ask_system(address, AI_NUMERICHOST).value_or(SocketAddresses());
}

NameLookups::NameLookups(std::shared_ptr<EventThread::Inbox> inbox, LookUp look_up)
    : inbox_(std::move(inbox)), look_up_(std::move(look_up)) {}

NameLookups::~NameLookups() {
  for (Lookup& lookup : running_)
    if (lookup.thread.joinable()) lookup.thread.join();
}

void NameLookups::begin(io::Address address, Then then) {
  waiting_.push_back({std::move(address), std::move(then)});
  next();
}

void NameLookups::next() {
  while (running_.size() < kThreadsMax && !waiting_.empty()) {
    running_.splice(running_.end(), waiting_, waiting_.begin());
    const auto it = std::prev(running_.end());
    try {
      it->thread = std::thread([this, it] {
        inbox_->post(
            [this, it, found = look_up_(it->address)]() mutable { done(it, std::move(found)); });
      });
    } catch (const std::exception& e) {  // no thread, or no memory
      inbox_->post([this, it, why = std::string(e.what())] {
        done(it,
             fail(Code::kUnavailable, "look up '%s': %s", it->address.host.c_str(), why.c_str()));
      });
    }
  }
}

void NameLookups::done(std::list<Lookup>::iterator lookup, Result<SocketAddresses> found) {
  if (lookup->thread.joinable()) lookup->thread.join();
  const Then then = std::move(lookup->then);
  running_.erase(lookup);
  then(std::move(found));
  next();
}

}  // namespace mc::http

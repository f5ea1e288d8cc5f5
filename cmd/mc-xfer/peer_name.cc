#include "cmd/mc-xfer/peer_name.h"

#include <netdb.h>

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "io/address.h"
#include "io/thread.h"

namespace mc::xfer {
namespace {

bool is_number(const std::string& host) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_flags = AI_NUMERICHOST;
  const bool number = ::getaddrinfo(host.c_str(), nullptr, &hints, &found) == 0;
  if (number) ::freeaddrinfo(found);
  return number;
}

}  // namespace

Result<> check_peer_name(const std::string& control, Duration most) {
  const auto address = io::parse_address(control);
  if (!address || is_number(address->host)) return {};
  const auto lookup = std::make_shared<std::packaged_task<int()>>([host = address->host] {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    const int outcome = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
    if (outcome == 0) ::freeaddrinfo(found);
    return outcome;
  });
  auto answer = lookup->get_future();
  auto started = io::start_thread([lookup] { (*lookup)(); });
  if (!started) return {};
  auto thread = std::make_unique<std::thread>(std::move(*started));
  if (answer.wait_for(most) != std::future_status::ready) {
    (void)thread.release();  // nothing ends a lookup: it lasts as long as the process at most
    return {};
  }
  thread->join();
  if (answer.get() != EAI_NONAME) return {};
  return fail(Code::kUnavailable, "%s: the name '%s' has no address: is it right?", control.c_str(),
              address->host.c_str());
}

}  // namespace mc::xfer

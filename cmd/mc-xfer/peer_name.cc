#include "cmd/mc-xfer/peer_name.h"

#include <netdb.h>

#include <chrono>
#include <ctime>
#include <memory>

#include "io/address.h"

namespace mc::xfer {
namespace {

struct NameLookup {  // the resolver's own threads write to it until it is over
  std::string host;
  addrinfo hints{};
  gaicb request{};
};

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
  auto lookup = std::make_unique<NameLookup>();
  lookup->host = address->host;
  lookup->hints.ai_socktype = SOCK_STREAM;
  lookup->request.ar_name = lookup->host.c_str();
  lookup->request.ar_request = &lookup->hints;
  gaicb* asked[] = {&lookup->request};
  if (::getaddrinfo_a(GAI_NOWAIT, asked, 1, nullptr) != 0) return {};
  const auto seconds = std::chrono::floor<std::chrono::seconds>(most);
  const timespec time{static_cast<time_t>(seconds.count()),
                      static_cast<long>((most - seconds).count())};
  const gaicb* const waited[] = {&lookup->request};
  (void)::gai_suspend(waited, 1, &time);
  const int outcome = ::gai_error(&lookup->request);
  if (outcome == EAI_INPROGRESS) {
    if (::gai_cancel(&lookup->request) != EAI_CANCELED) (void)lookup.release();
    return {};
  }
  if (outcome == 0) ::freeaddrinfo(lookup->request.ar_result);
  if (outcome != EAI_NONAME) return {};
  return fail(Code::kUnavailable, "%s: the name '%s' has no address: is it right?", control.c_str(),
              address->host.c_str());
}

}  // namespace mc::xfer

#include "rpc/server_list.h"

#include <algorithm>

#include "io/address.h"

namespace mc::rpc {

Result<ServerList> ServerList::parse(const std::string& text) {
  std::vector<std::string> addresses;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    MC_TRY(const io::Address address, io::parse_address(text.substr(at, end - at)));
    if (address.port == 0) return fail(Code::kInvalid, "connect to %s: no port", text.c_str());
    if (std::find(addresses.begin(), addresses.end(), address.text()) == addresses.end())
      addresses.push_back(address.text());
    at = end + 1;
  }
  if (addresses.size() > kMax / 2)
    return fail(Code::kInvalid, "%zu addresses: want at most %zu", addresses.size(), kMax / 2);
  return ServerList(std::move(addresses));
}

std::string ServerList::text() const {
  std::string all;
  for (size_t i = 0; i < listed_; ++i) all += (i > 0 ? "," : "") + addresses_[i];
  return all;
}

void ServerList::skip(size_t at) {
  if (at == current_) current_ = (current_ + 1) % addresses_.size();
}

bool ServerList::refused(size_t at, const std::string& instead) {
  if (at != current_) return true;  // an earlier answer moved on already
  const auto address =
      instead.empty() ? fail(Code::kNotFound, "no other server") : io::parse_address(instead);
  if (!address || address->port == 0) {
    skip(at);
    return false;
  }
  const std::string named = address->text();
  auto known = std::find(addresses_.begin(), addresses_.end(), named);
  if (known == addresses_.end()) {
    if (addresses_.size() < kMax) addresses_.emplace_back();
    const size_t told =
        addresses_.size() < kMax ? addresses_.size() - 1 : listed_ + replaced_++ % (kMax - listed_);
    addresses_[told] = named;
    known = addresses_.begin() + static_cast<long>(told);
  }
  current_ = static_cast<size_t>(known - addresses_.begin());
  return current_ != at;
}

}  // namespace mc::rpc

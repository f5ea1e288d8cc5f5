#include "xfer/rails/nics.h"

#include <doctest/doctest.h>

using namespace mc;
using namespace mc::xfer;

namespace nics_test {

namespace {

Nic nic(const char* name, const char* address, uint32_t prefix_bits = 24) {
  Nic n;
  n.name = name;
  n.address = address;
  n.prefix_bits = prefix_bits;
  return n;
}

const std::vector<Nic> kMachine{nic("lo", "127.0.0.1", 8), nic("lo", "::1", 128),
                                nic("eth0", "10.0.0.1"), nic("eth1", "10.0.1.1"),
                                nic("eth1", "2001:db8::1", 64)};

std::vector<std::string> names(const std::vector<Nic>& nics) {
  std::vector<std::string> out;
  for (const Nic& n : nics) out.push_back(n.name + "=" + n.address);
  return out;
}
std::vector<std::string> addresses(const std::vector<Advertised>& all) {
  std::vector<std::string> out;
  for (const Advertised& a : all) out.push_back(a.address);
  return out;
}
using Texts = std::vector<std::string>;

}  // namespace

TEST_SUITE("xfer/nics") {
  TEST_CASE("the interfaces named are used, in that order, and loopback stays") {
    auto chosen = choose_nics(kMachine, {"eth1", "eth0"});
    REQUIRE(chosen.has_value());
    CHECK(names(*chosen) ==
          Texts{"eth1=10.0.1.1", "eth1=2001:db8::1", "eth0=10.0.0.1", "lo=127.0.0.1", "lo=::1"});
    auto all = choose_nics(kMachine, {});
    REQUIRE(all.has_value());
    CHECK(all->size() == kMachine.size());
    CHECK(all->front().name == "eth0");
  }

  TEST_CASE("an interface that is not there is named, and so are those that are") {
    auto wrong = choose_nics({nic("eth0", "10.0.0.1")}, {"eth7"});
    REQUIRE_FALSE(wrong.has_value());
    CHECK(wrong.error().code == Code::kNotFound);
    CHECK(wrong.error().what.find("'eth7'") != std::string::npos);
    CHECK(wrong.error().what.find("eth0") != std::string::npos);
  }

  TEST_CASE("a socket bound to all addresses is advertised once a NIC, and once on loopback") {
    auto v4 = advertise({"0.0.0.0", 70}, kMachine);
    CHECK(addresses(v4) == Texts{"10.0.0.1:70", "10.0.1.1:70", "127.0.0.1:70"});
    CHECK(v4[1].nic.name == "eth1");
    CHECK(v4[1].nic.prefix_bits == 24);
    auto both = advertise({"::", 70}, kMachine);
    CHECK(addresses(both) ==
          Texts{"10.0.0.1:70", "10.0.1.1:70", "[2001:db8::1]:70", "127.0.0.1:70"});
  }

  TEST_CASE("a socket bound to one address is advertised as that, with the NIC that has it") {
    auto one = advertise({"10.0.1.1", 70}, kMachine);
    REQUIRE(addresses(one) == Texts{"10.0.1.1:70"});
    CHECK(one[0].nic.name == "eth1");
    auto named = advertise({"node-b.example", 70}, kMachine);
    CHECK(addresses(named) == Texts{"node-b.example:70"});
    CHECK(named[0].nic.name.empty());
  }

  TEST_CASE("where nothing is known of the interfaces, peers are left to fill in the host") {
    CHECK(addresses(advertise({"0.0.0.0", 70}, {})) == Texts{"0.0.0.0:70"});
  }

  TEST_CASE("this machine has a loopback address, and a network stack with a name") {
    bool loopback = false;
    for (const Nic& n : system_nics()) loopback = loopback || io::is_loopback(n.address);
    CHECK(loopback);
    CHECK_FALSE(net_id().empty());
  }
}

}  // namespace nics_test

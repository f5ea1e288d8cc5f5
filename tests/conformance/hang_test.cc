// A peer that is killed, stopped, or started again at the same addresses, at any step of what two
// processes do with each other: everything is answered, in time, and with the right bytes or an
// error.
#include "tests/conformance/child.h"
#include "tests/conformance/control.h"

using namespace mc;
using namespace mc::xfer;
using namespace std::chrono_literals;

TEST_SUITE("xfer/hang") {
  TEST_CASE("serve until killed" * doctest::skip()) {  // what class Served runs
    const char* text = std::getenv(Served::kWhat);
    if (text == nullptr) return;
    std::vector<std::string> words;
    for (std::string_view rest = text; !rest.empty();) {
      const size_t end = std::min(rest.find(','), rest.size());
      words.emplace_back(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    REQUIRE(words.size() == 4);
    const int pipe = std::atoi(words[0].c_str());
    Metrics metrics;
    EngineOptions o;
    o.node = "served";
    o.transports = {words[1]};
    o.data = {words[3]};
    o.peer_timeout = 2s;
    auto engine = Engine::open(kClock, o, metrics);
    REQUIRE_MESSAGE(engine.has_value(), (engine ? "" : engine.error().what));
    auto memory = (*engine)->allocate(Served::kBytes);
    REQUIRE(memory.has_value());
    fill(memory->bytes(), 11);
    Control control(**engine, words[2]);
    (*engine)->on_notification([](const Notification&) {});
    const auto& data = (*engine)->data_addresses();
    const std::string where =
        control.address() + "," + (data.empty() ? words[3] : data.front()) + "\n";
    REQUIRE(::write(pipe, where.data(), where.size()) == static_cast<ssize_t>(where.size()));
    ::close(pipe);
    for (;;) ::pause();
  }
}

// Runs the mock engine of the unit tests as a program (tests/unit/serve/mock_engine.h).
//
// It is an OpenAI-compatible server with vLLM's cache events and, as half of a pair, its
// connector's parameters. Tests start and kill it next to a conductor.
//
//   mock-engine NAME MODEL BLOCK ROLE READY [HEADERS]
//
// READY is a file, written once it serves: what POST /register takes for it. HEADERS gets, at the
// end, those of all requests.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>

#include "base/log.h"
#include "io/file.h"
#include "io/signals.h"
#include "tests/unit/serve/mock_engine.h"

int main(int argc, char** argv) {
  if (argc != 6 && argc != 7) {
    std::fputs("usage: mock-engine NAME MODEL BLOCK both|prefill|decode READY [HEADERS]\n", stderr);
    return 2;
  }
  // What the mock requires of a request holds here as it does in a test.
  doctest::Context context;
  context.setAsDefaultForAssertsOutOfTestCases();
  context.setAssertHandler([](const doctest::AssertData& a) {
    if (!a.m_failed) return;
    std::fprintf(stderr, "mock-engine: %s:%d: %s\n", a.m_file, a.m_line, a.m_expr);
    std::abort();
  });
  const mc::SteadyClock clock;
  mc::io::Loop loop(clock);
  mc::io::Signals signals(loop, [&](int) { loop.stop(); });
  mc::serve::test::MockEngine engine(loop, argv[2], std::strtoull(argv[3], nullptr, 10));
  const std::string registration = engine.registration(argv[1], argv[4]);
  if (!mc::io::write_file_atomically(argv[5], registration + "\n")) return 1;
  if (!loop.run()) return 1;
  if (argc < 7) return 0;
  std::string headers;
  for (const auto& came : engine.came)
    for (const auto& [name, value] : came.headers) headers += name + ": " + value + "\n";
  return mc::io::write_file_atomically(argv[6], headers) ? 0 : 1;
}

// Replays the kept inputs of a fuzz target and seeded changes of them, where there is no libFuzzer.
#pragma once
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "tests/fuzz/target.h"
#include "tests/slow.h"

namespace mc::fuzz {

// A byte, a range left out, said twice or moved, the end cut off, or a word of the target's.
inline void change(std::string& input, const std::vector<std::string_view>& words, Random& random) {
  if (input.empty()) return;
  const size_t at = random.below(input.size());
  const size_t n = 1 + random.below(std::min<uint64_t>(input.size() - at, 200));
  const std::string piece = input.substr(at, n);
  switch (random.below(words.empty() ? 1 : 6)) {
    case 0: input[at] = static_cast<char>(random.next()); break;
    case 1: input.erase(at, n); break;
    case 2: input.insert(at, piece); break;
    case 3: input.insert(random.below(input.size()), piece); break;
    case 4: input.insert(at, words[random.below(words.size())]); break;
    default:
      if (random.chance(.1)) input.resize(at);
      // In place of what stands between two quotes or spaces.
      const size_t from = input.find_first_of("\" \n", at);
      if (from == std::string::npos) break;
      const size_t to = std::min(input.find_first_of("\" \n", from + 1), input.size());
      input.replace(from + 1, to - from - 1, words[random.below(words.size())]);
  }
}

// Ends the process when an input takes a second of CPU time.
inline void watch_cpu_time(bool on) {
  const time_t seconds = on ? (kSlow > 1 ? 10 : 1) : 0;
  const itimerval timer{{}, {seconds, 0}};
  (void)::setitimer(ITIMER_PROF, &timer, nullptr);
}

inline int replay(const Target& target, int argc, char** argv) {
  std::vector<std::string> corpus = target.seeds();
  const auto add = [&](const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  };
  std::vector<std::filesystem::path> files;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(argv[2], none))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());  // the same changes everywhere
  for (const auto& file : files) add(file);
  for (int i = 4; i < argc; ++i) add(argv[i]);
  const int rounds = std::atoi(argv[3]);
  std::printf("%s: %zu inputs, %d changes of them\n", target.name, corpus.size(), rounds);
  if (corpus.empty()) return 1;
  (void)std::signal(SIGPROF, [](int) {
    constexpr char kSlowInput[] = "an input took longer than a second of CPU time\n";
    (void)!::write(STDERR_FILENO, kSlowInput, sizeof kSlowInput - 1);
    std::abort();
  });
  const auto run = [&target](const std::string& input) {
    watch_cpu_time(true);
    target.run(input);
    watch_cpu_time(false);
  };
  for (const auto& input : corpus) run(input);
  const std::vector<std::string_view> words = target.words();
  Random random(1);
  for (int i = 0; i < rounds; ++i) {
    std::string input = corpus[random.below(corpus.size())];
    for (uint64_t n = 1 + random.below(8); n > 0; --n) change(input, words, random);
    run(input);
  }
  return 0;
}

}  // namespace mc::fuzz

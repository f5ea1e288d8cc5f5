// Another process that offers memory, and the descriptor by which it is reached.
#pragma once
#include <string>
#include <vector>

#include "base/text.h"
#include "tests/conformance/pair.h"
#include "tests/conformance/process.h"

namespace mc::xfer {

struct ChildOptions {
  std::vector<std::string> transports{"shm"};
  bool application_memory = false;  // else the engine's
  uint64_t bytes = 1 * kMiB;
  uid_t uid = 0;  // not 0: becomes that user first
};

// Offers memory filled from seed 11 until it is killed, by the test case "offer until killed" of
// process_test.cc.
class Child : public Process {
 public:
  SegmentDescriptor segment;
  explicit Child(const ChildOptions& o) {
    const std::string text =
        start("offer until killed", strf("%d %llu %u %s", o.application_memory ? 1 : 0,
                                         static_cast<unsigned long long>(o.bytes), o.uid,
                                         join(o.transports, " ").c_str()));
    auto decoded = wire::decode<SegmentDescriptor>(text);
    REQUIRE(decoded.has_value());
    segment = *decoded;
  }
};

inline Request read_of(SegmentHandle segment, uint64_t offset, std::span<std::byte> local) {
  Request r;
  r.segment = segment;
  r.offset = offset;
  r.local = local.data();
  r.bytes = local.size();
  return r;
}

// `n` reads of the same bytes, each into a part of `local` of its own: parts of memory that two
// reads fill at once would be a race of the test.
inline std::vector<Request> reads_of(SegmentHandle segment, uint64_t offset,
                                     std::span<std::byte> local, size_t n) {
  std::vector<Request> all;
  const size_t each = local.size() / n;
  for (size_t i = 0; i < n; ++i)
    all.push_back(read_of(segment, offset, local.subspan(i * each, each)));
  return all;
}

}  // namespace mc::xfer

// Peers of the transfer engine through the C interface: addresses of their memory, and notices.
#include <poll.h>

#include <string>
#include <vector>

#include "tests/unit/capi/peer.h"

namespace mc::capi {
namespace {

uint64_t address_of(const void* p) { return reinterpret_cast<uint64_t>(p); }

TEST_CASE("memory of a peer is found by its address, also what it registered after it was opened") {
  Peer owner("owner"), reader("reader");
  std::vector<char> first(8192, 'a'), second(4096, 'b');
  const Registered one(owner, first);
  const mc_segment segment = reader.open(owner);
  uint64_t offset = 99;
  REQUIRE(mc_segment_offset(reader.engine, segment, address_of(first.data()), 8192, &offset) ==
          MC_OK);
  CHECK(offset == mc_memory_offset(one.handle));
  REQUIRE(mc_segment_offset(reader.engine, segment, address_of(&first[100]), 8092, &offset) ==
          MC_OK);
  CHECK(offset == mc_memory_offset(one.handle) + 100);
  CHECK(mc_segment_offset(reader.engine, segment, address_of(&first[100]), 8093, &offset) ==
        MC_INVALID);
  CHECK(mc_segment_offset(reader.engine, segment, address_of(second.data()), 1, &offset) ==
        MC_NOT_FOUND);
  {
    const Registered two(owner, second);
    REQUIRE(mc_segment_offset(reader.engine, segment, address_of(second.data()), 4096, &offset) ==
            MC_OK);
    std::vector<char> back(4096);
    mc_request read{};
    read.op = MC_READ;
    read.local = back.data();
    read.segment = segment;
    read.offset = offset;
    read.bytes = 4096;
    REQUIRE(mc_transfer(reader.engine, &read, 60'000) == MC_OK);
    CHECK(back == second);
  }
  // Freed, and registered anew at the same address: the old offset never reaches the new memory.
  const Registered again(owner, second);
  std::vector<char> other(4096, 'x');
  mc_request stale{};
  stale.segment = segment;
  stale.offset = offset;
  stale.bytes = 4096;
  stale.local = other.data();
  stale.op = MC_READ;
  CHECK(mc_transfer(reader.engine, &stale, 60'000) == MC_STALE);
  stale.op = MC_WRITE;
  CHECK(mc_transfer(reader.engine, &stale, 60'000) != MC_OK);
  CHECK(second == std::vector<char>(4096, 'b'));
  uint64_t anew = 0;
  REQUIRE(mc_segment_offset(reader.engine, segment, address_of(second.data()), 4096, &anew) ==
          MC_OK);
  CHECK(anew != offset);
  CHECK(mc_segment_offset(reader.engine, 77, address_of(second.data()), 1, &anew) == MC_NOT_FOUND);
}

TEST_CASE("memory that is registered twice is found whole") {
  Peer owner("owner"), reader("reader");
  std::vector<char> memory(8192);
  const Registered whole(owner, memory);
  mc_memory* inside = nullptr;
  REQUIRE(mc_memory_register(owner.engine, &memory[1000], 100, nullptr, 0, &inside) == MC_OK);
  const mc_segment segment = reader.open(owner);
  uint64_t offset = 0;
  REQUIRE(mc_segment_offset(reader.engine, segment, address_of(&memory[1050]), 1000, &offset) ==
          MC_OK);
  CHECK(offset == mc_memory_offset(whole.handle) + 1050);
  REQUIRE(mc_segment_offset(reader.engine, segment, address_of(&memory[2000]), 10, &offset) ==
          MC_OK);
  CHECK(offset == mc_memory_offset(whole.handle) + 2000);
  mc_memory_free(inside);
}

TEST_CASE("an owner without the option does not tell its addresses") {
  Peer owner("owner", {}), reader("reader");
  std::vector<char> memory(4096);
  const Registered one(owner, memory);
  uint64_t offset = 0;
  CHECK(mc_segment_offset(reader.engine, reader.open(owner), address_of(memory.data()), 1,
                          &offset) == MC_UNSUPPORTED);
  CHECK(std::string(mc_last_error()).find("addresses") != std::string::npos);
}

// F28: memory of a device was silently taken for the host's.
TEST_CASE("memory of a kind that is not there is refused") {
  Peer peer("p");
  std::vector<char> memory(4096);
  mc_memory* out = nullptr;
  for (const char* location : {"cuda:1", "cuda", "tape:0", ""}) {
    CHECK(mc_memory_register(peer.engine, memory.data(), memory.size(), location, 0, &out) ==
          MC_UNSUPPORTED);
    CHECK(out == nullptr);
  }
  for (const char* location : {"cpu:0", "cpu", "*"}) {
    REQUIRE(mc_memory_register(peer.engine, memory.data(), memory.size(), location, 0, &out) ==
            MC_OK);
    mc_memory_free(out);
    out = nullptr;
  }
}

struct Heard {
  std::vector<std::string> all;  // "from name data"
  size_t most = SIZE_MAX;
};

int hear(void* user, const mc_notice* notice) {
  auto& heard = *static_cast<Heard*>(user);
  heard.all.push_back(std::string(notice->from) + " " + notice->name + " " +
                      std::string(static_cast<const char*>(notice->data), notice->bytes));
  return heard.all.size() == heard.most ? 1 : 0;
}

bool readable(int fd) {
  pollfd p{fd, POLLIN, 0};
  return ::poll(&p, 1, 0) == 1;
}

TEST_CASE("notices come in order, and the descriptor is readable while some wait") {
  Peer a("a"), b("b");
  const mc_segment to = a.open(b);
  REQUIRE(mc_notify(a.engine, to, "before", "0", 1, 60'000) == MC_OK);
  const int fd = mc_notices_fd(b.engine);
  REQUIRE(fd >= 0);
  CHECK(readable(fd));
  for (const char* data : {"1", "22", ""})
    REQUIRE(mc_notify(a.engine, to, "n", data, std::string(data).size(), 60'000) == MC_OK);
  Heard heard;
  heard.most = 2;
  CHECK(mc_notices_take(b.engine, 100, hear, &heard) == 2);
  CHECK(readable(fd));
  heard.most = SIZE_MAX;
  CHECK(mc_notices_take(b.engine, 1, hear, &heard) == 1);
  CHECK(mc_notices_take(b.engine, 100, hear, &heard) == 1);
  CHECK(heard.all == std::vector<std::string>{"a before 0", "a n 1", "a n 22", "a n "});
  CHECK(!readable(fd));
  CHECK(mc_notices_take(b.engine, 100, hear, &heard) == 0);
  REQUIRE(mc_notify(a.engine, to, "n", "3", 1, 60'000) == MC_OK);
  CHECK(readable(fd));
}

TEST_CASE("a notice behind a batch is there when its bytes are, and not when they are not") {
  Peer a("a"), b("b");
  std::vector<char> target(4096), local(4096, 'x');
  const Registered memory(b, target);
  const mc_segment to = a.open(b);
  mc_request write{};
  write.op = MC_WRITE;
  write.local = local.data();
  write.segment = to;
  write.offset = mc_memory_offset(memory.handle);
  write.bytes = 4096;
  const mc_batch batch = mc_batch_allocate(a.engine);
  REQUIRE(mc_batch_submit_notify(a.engine, batch, &write, 1, "done", "7", 1) == MC_OK);
  REQUIRE(mc_batch_wait(a.engine, batch, 60'000) == MC_OK);
  CHECK(target == local);
  Heard heard;
  CHECK(mc_notices_take(b.engine, 100, hear, &heard) == 1);
  CHECK(heard.all == std::vector<std::string>{"a done 7"});
  mc_status status{};
  REQUIRE(mc_batch_status(a.engine, batch, 1, &status) == MC_OK);  // the delivery
  CHECK(status.state == MC_STATE_COMPLETED);
  mc_batch_free(a.engine, batch);
}

TEST_CASE("what is no notice is invalid, and a full receiver is busy") {
  Peer a("a"), b("b");
  const mc_segment to = a.open(b);
  const std::string name(256, 'n');
  const std::vector<char> large(64 * 1024 + 1);
  CHECK(mc_notify(a.engine, to, name.c_str(), nullptr, 0, 60'000) == MC_INVALID);
  CHECK(mc_notify(a.engine, to, "n", large.data(), large.size(), 60'000) == MC_INVALID);
  CHECK(mc_notify(a.engine, to, nullptr, nullptr, 0, 60'000) == MC_INVALID);
  CHECK(mc_notify(a.engine, to, "n", nullptr, 1, 60'000) == MC_INVALID);
  CHECK(mc_notify(a.engine, 77, "n", nullptr, 0, 60'000) == MC_NOT_FOUND);
  mc_code code = MC_OK;
  size_t sent = 0;
  while (code == MC_OK && sent < 1000) {
    code = mc_notify(a.engine, to, "n", large.data(), 64 * 1024, 60'000);
    if (code == MC_OK) ++sent;
  }
  CHECK(code == MC_BUSY);  // 16 MiB wait
  CHECK(sent >= 200);
  CHECK(sent <= 256);
  Heard heard;
  CHECK(mc_notices_take(b.engine, 1, hear, &heard) == 1);
  CHECK(mc_notify(a.engine, to, "n", large.data(), 64 * 1024, 60'000) == MC_OK);
}

}  // namespace
}  // namespace mc::capi

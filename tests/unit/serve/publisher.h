// An engine's side of vLLM's cache events: batches are encoded, published with their number, kept,
// and sent again when asked. A test may lose some on the way.
#pragma once
#include <doctest/doctest.h>

#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/loop.h"
#include "rpc/socket.h"

namespace mc::serve::test {

// MessagePack by hand, so that the decoder is not tested against its own library's encoder.
struct Pack {
  std::string out;
  Pack& byte(unsigned b) {
    out.push_back(static_cast<char>(b));
    return *this;
  }
  Pack& big(uint64_t n, int bytes) {
    for (int i = bytes - 1; i >= 0; --i) byte(static_cast<unsigned>(n >> (8 * i) & 0xff));
    return *this;
  }
  Pack& nil() { return byte(0xc0); }
  Pack& integer(uint64_t n) {
    return n < 128 ? byte(static_cast<unsigned>(n)) : byte(0xcf).big(n, 8);
  }
  Pack& negative(int64_t n) { return byte(0xd3).big(static_cast<uint64_t>(n), 8); }
  Pack& array(size_t n) { return byte(0xdd).big(n, 4); }
  Pack& map(size_t n) { return byte(0xdf).big(n, 4); }
  Pack& text(const std::string& s) {
    byte(0xdb).big(s.size(), 4);
    out += s;
    return *this;
  }
  Pack& bytes(const std::string& s) {
    byte(0xc4).byte(static_cast<unsigned>(s.size()));
    out += s;
    return *this;
  }
  Pack& real(double d) {
    uint64_t n = 0;
    std::memcpy(&n, &d, sizeof n);
    return byte(0xcb).big(n, 8);
  }
};

using Hashes = std::vector<uint64_t>;

inline std::string stored(const Hashes& hashes, std::optional<uint64_t> parent,
                          const std::vector<int32_t>& tokens, uint64_t block,
                          const std::string& medium = "GPU") {
  Pack p;
  p.array(7).text("BlockStored").array(hashes.size());
  for (const uint64_t h : hashes) p.integer(h);
  if (parent)
    p.integer(*parent);
  else
    p.nil();
  p.array(tokens.size());
  for (const int32_t t : tokens) p.integer(static_cast<uint64_t>(t));
  p.integer(block).nil().text(medium);
  return p.out;
}

// As vLLM 0.32 has it: a map, with what enters each block's hash beside its tokens.
inline std::string stored_map(const Hashes& hashes, std::optional<uint64_t> parent,
                              const std::vector<int32_t>& tokens, uint64_t block,
                              const std::string& salt, const std::string& lora) {
  Pack p;
  p.map(9).text("type").text("BlockStored").text("block_hashes").array(hashes.size());
  for (const uint64_t h : hashes) p.integer(h);
  p.text("parent_block_hash");
  if (parent)
    p.integer(*parent);
  else
    p.nil();
  p.text("token_ids").array(tokens.size());
  for (const int32_t t : tokens) p.integer(static_cast<uint64_t>(t));
  p.text("block_size").integer(block).text("lora_id").nil().text("medium").text("GPU");
  p.text("lora_name");
  if (lora.empty())
    p.nil();
  else
    p.text(lora);
  p.text("extra_keys").array(hashes.size());
  for (size_t i = 0; i < hashes.size(); ++i) {
    const bool salted = !salt.empty() && i == 0 && !parent;
    const size_t n = (lora.empty() ? 0 : 1) + (salted ? 1 : 0);
    if (n == 0)
      p.nil();
    else
      p.array(n);
    if (!lora.empty()) p.text(lora);
    if (salted) p.text(salt);
  }
  return p.out;
}

inline std::string removed(const Hashes& hashes, const std::string& medium = "GPU") {
  Pack p;
  p.array(3).text("BlockRemoved").array(hashes.size());
  for (const uint64_t h : hashes) p.integer(h);
  p.text(medium);
  return p.out;
}

inline std::string cleared() { return Pack().array(1).text("AllBlocksCleared").out; }

inline std::string batch(const std::vector<std::string>& events, double time = 1.5) {
  Pack p;
  p.array(3).real(time).array(events.size());
  for (const std::string& e : events) p.out += e;
  p.integer(0);
  return p.out;
}

inline std::string number_frame(uint64_t n) { return Pack().big(n, 8).out; }

class Publisher {
 public:
  explicit Publisher(io::Loop& loop, size_t keep = 10'000,
                     const std::string& events = "127.0.0.1:0",
                     const std::string& replay = "127.0.0.1:0")
      : loop_(loop),
        keep_(keep),
        pub_(bound(loop, rpc::Socket::Kind::kPub, events)),
        router_(bound(loop, rpc::Socket::Kind::kRouter, replay)) {
    watch_ = loop_.watch_socket(router_.handle(), [this] { answer(); });
  }
  ~Publisher() { loop_.unwatch(watch_); }

  std::string events() const { return "tcp://" + pub_.address(); }
  std::string replay() const { return "tcp://" + router_.address(); }

  void publish(const std::vector<std::string>& events, bool lost = false) {
    const uint64_t seq = next_++;
    kept_.emplace_back(seq, batch(events, static_cast<double>(seq)));
    if (kept_.size() > keep_) kept_.pop_front();
    if (!lost) (void)pub_.send({topic, number_frame(seq), kept_.back().second});
  }
  void keep_raw(const std::string& payload) { kept_.emplace_back(next_++, payload); }
  void send_raw(const std::vector<std::string_view>& frames) { (void)pub_.send(frames); }
  int asked = 0;
  bool deaf = false;        // answers no replay
  bool with_topic = false;  // in what it repeats, as vLLM since 0.29
  std::string topic = "kv-events";

 private:
  // A port that was just closed is free a moment later.
  static rpc::Socket bound(io::Loop& loop, rpc::Socket::Kind kind, const std::string& address) {
    auto socket = rpc::Socket::listen(kind, address);
    for (int i = 0; i < 500 && !socket; ++i) {
      (void)loop.turn(std::chrono::milliseconds(10));
      socket = rpc::Socket::listen(kind, address);
    }
    REQUIRE_MESSAGE(socket, socket.error().what);
    return std::move(*socket);
  }
  void send_again(const std::string& to, const std::string& about, const std::string& number,
                  const std::string& payload) {
    if (with_topic)
      (void)router_.send({to, "", about, number, payload});
    else
      (void)router_.send({to, "", number, payload});
  }
  void answer() {
    for (auto f = router_.receive(); !f.empty(); f = router_.receive()) {
      ++asked;
      if (deaf || f.size() != 3 || f[2].size() != 8) continue;
      uint64_t from = 0;
      for (const char c : f[2]) from = from << 8 | static_cast<uint8_t>(c);
      for (const auto& [seq, payload] : kept_)
        if (seq >= from) send_again(f[0], topic, number_frame(seq), payload);
      send_again(f[0], "", number_frame(UINT64_MAX), "");
    }
  }

  io::Loop& loop_;
  const size_t keep_;
  rpc::Socket pub_, router_;
  io::Loop::Handle watch_ = 0;
  std::deque<std::pair<uint64_t, std::string>> kept_;
  uint64_t next_ = 0;
};

}  // namespace mc::serve::test

#include "serve/worker/lookup_bridge.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

namespace mc::serve {
namespace {

constexpr size_t kHashesMax = 65536;

std::string little_endian(uint64_t n) {
  std::string text(8, '\0');
  for (char& c : text) {
    c = static_cast<char>(n & 0xff);
    n >>= 8;
  }
  return text;
}

uint64_t from_little_endian(const std::string& text) {
  uint64_t n = 0;
  for (size_t i = 8; i-- > 0;) n = n << 8 | static_cast<uint8_t>(text[i]);
  return n;
}

std::optional<std::vector<BlockHash>> hashes_of(const rpc::LocalServer::Frames& question,
                                                uint32_t block_tokens) {
  if (question.size() < 2 || question[0].size() != 8) return std::nullopt;
  if (question.size() - 1 > from_little_endian(question[0]) / block_tokens) return std::nullopt;
  std::vector<BlockHash> hashes(question.size() - 1);
  for (size_t i = 0; i < hashes.size(); ++i) {
    if (question[i + 1].size() != sizeof hashes[i].bytes) return std::nullopt;
    std::memcpy(hashes[i].bytes.data(), question[i + 1].data(), sizeof hashes[i].bytes);
  }
  return hashes;
}

}  // namespace

std::vector<std::string> lookup_question(uint64_t tokens, const std::vector<BlockHash>& hashes) {
  std::vector<std::string> frames{little_endian(tokens)};
  for (const BlockHash& hash : hashes)
    frames.emplace_back(reinterpret_cast<const char*>(hash.bytes.data()), sizeof hash.bytes);
  return frames;
}

Result<uint64_t> lookup_hits(const std::string& answer) {
  if (answer.size() != 8)
    return fail(Code::kInvalid,
                "the lookup was refused: want the prompt's tokens and the hashes of "
                "its full blocks");
  return from_little_endian(answer);
}

Result<std::unique_ptr<LookupBridge>> LookupBridge::open(io::Loop& loop, const std::string& path,
                                                         uint32_t block_tokens, Lookup lookup,
                                                         Metrics& metrics) {
  std::unique_ptr<LookupBridge> self(new LookupBridge(block_tokens, std::move(lookup), metrics));
  MC_TRY(self->server_,
         rpc::LocalServer::open(loop, path, kHashesMax + 1,
                                [raw = self.get()](const rpc::LocalServer::Frames& question,
                                                   const rpc::LocalServer::Answer& reply) {
                                  raw->answer(question, reply);
                                }));
  return self;
}

LookupBridge::LookupBridge(uint32_t block_tokens, Lookup lookup, Metrics& metrics)
    : block_tokens_(block_tokens),
      lookup_(std::move(lookup)),
      asked_(
          metrics.counter("mc_engine_lookup_blocks_total", "blocks that schedulers asked about")),
      hits_(metrics.counter("mc_engine_lookup_hits_total", "blocks asked about that are reusable")),
      refused_(metrics.counter("mc_engine_lookup_refused_total", "malformed questions, refused")) {}

void LookupBridge::answer(const rpc::LocalServer::Frames& question,
                          const rpc::LocalServer::Answer& reply) {
  const auto hashes = hashes_of(question, block_tokens_);
  if (!hashes) {
    refused_.add();
    return reply({});
  }
  asked_.add(hashes->size());
  lookup_(*hashes, [&hits = hits_, reply](size_t found) {
    hits.add(found);
    reply(little_endian(found));
  });
}

}  // namespace mc::serve

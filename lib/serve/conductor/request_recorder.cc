#include "serve/conductor/request_recorder.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/hash.h"
#include "base/log.h"

namespace mc::serve {
namespace {

// Stands for the tokens behind the full blocks, and for all before them.
uint64_t partial_id(std::span<const int32_t> tail, std::string_view salt,
                    std::span<const uint64_t> tags) {
  const uint64_t before = tags.empty() ? chain_root(salt).tag() : tags.back();
  return xxh3(tail.data(), tail.size_bytes(), before);
}

}  // namespace

Result<std::unique_ptr<RequestRecorder>> RequestRecorder::open(const std::string& path,
                                                               uint64_t block_tokens) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::app);
  if (!file) return fail_errno("--record %s", path.c_str());
  return std::unique_ptr<RequestRecorder>(new RequestRecorder(path, std::move(file), block_tokens));
}

RequestRecorder::~RequestRecorder() { write_ended(); }

void RequestRecorder::arrived(uint64_t request, int64_t wall_ms, std::span<const int32_t> prompt,
                              std::string_view salt, std::span<const uint64_t> tags) {
  if (prompt.empty() || !file_.is_open()) return;
  Recorded r{.wall_ms = static_cast<uint64_t>(wall_ms),
             .input = prompt.size(),
             .ids = {tags.begin(), tags.end()},
             .output = {}};
  const size_t full = tags.size() * block_tokens_;
  if (full < prompt.size()) r.ids.push_back(partial_id(prompt.subspan(full), salt, tags));
  requests_.emplace_hint(requests_.end(), request, std::move(r));
}

void RequestRecorder::ended(uint64_t request, uint32_t output_tokens) {
  const auto it = requests_.find(request);
  if (it == requests_.end() || it->second.output) return;
  it->second.output = output_tokens;
  ++ended_;
  for (auto first = requests_.begin(); first != requests_.end() && first->second.output;
       first = requests_.erase(first), --ended_)
    write(first->second);
  if (ended_ > kHeldMax) write_ended();
}

void RequestRecorder::write_ended() {
  for (auto it = requests_.begin(); it != requests_.end();) {
    if (!it->second.output) {
      ++it;
      continue;
    }
    write(it->second);
    it = requests_.erase(it);
  }
  ended_ = 0;
}

void RequestRecorder::write(const Recorded& r) {
  if (r.output.value_or(0) == 0 || !file_.is_open()) return;
  std::string line = strf("{\"timestamp\": %llu, \"input_length\": %llu, \"output_length\": %u, ",
                          static_cast<unsigned long long>(r.wall_ms),
                          static_cast<unsigned long long>(r.input), *r.output);
  line += "\"hash_ids\": [";
  for (size_t i = 0; i < r.ids.size(); ++i) line += (i > 0 ? ", " : "") + std::to_string(r.ids[i]);
  line += "]}\n";
  errno = 0;
  file_ << line << std::flush;
  if (file_) return;
  log_warn("conductor", "--record %s: %s: no more requests are recorded", path_.c_str(),
           std::strerror(errno));
  file_.close();
}

}  // namespace mc::serve

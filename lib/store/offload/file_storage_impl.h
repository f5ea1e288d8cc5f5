// Private types of `FileStorage`: writes and loads in flight.
//
// Thread: see FileStorage.
#pragma once
#include "store/offload/file_storage.h"
#include "store/ssd/aligned_buffer.h"

namespace mc::store {

// One write: from the objects' memory to the report.
struct FileStorage::Batch {
  std::vector<TierJob> jobs;
  std::vector<Result<>> outcomes;
  std::vector<ssd::Save> saves;            // of the jobs without an error so far
  std::vector<size_t> which;               // index of each one's job
  std::vector<ssd::AlignedBuffer> copies;  // of values in several pieces
  ssd::Backend::Eviction eviction;
  std::vector<ssd::Stored> left;  // whose eviction failed
  uint32_t attempt = 0;
};

struct FileStorage::Loading {
  LoadObjects message;
  std::vector<rpc::Reply<Loaded>> reply;  // empty: a promotion only
  bool bring = false;                     // a drain's move: its result goes to the master
  Loaded answer;
  ssd::Staging::Batch batch;
  std::vector<ssd::Load> loads;
  std::vector<size_t> which;  // index of each one's item
};

inline ssd::Stored stored_of(const TierObject& o) {
  return {o.name, o.bytes, o.checksum, o.generation, o.keep_until_s, o.cls};
}
inline TierObject tier_object(const ssd::Stored& o) {
  return {o.key, o.bytes, o.checksum, o.generation, o.keep_until_s, static_cast<uint8_t>(o.klass)};
}

}  // namespace mc::store

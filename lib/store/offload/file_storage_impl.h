// Private types of `FileStorage`: writes and loads in flight.
//
// Thread: see FileStorage.
#pragma once
#include "store/offload/file_storage.h"
#include "store/ssd/aligned_buffer.h"

namespace mc::store {

// A write, from the memory of its objects to the report.
struct FileStorage::Batch {
  std::vector<TierJob> jobs;
  std::vector<Result<>> outcomes;
  std::vector<ssd::Save> saves;            // of the jobs whose outcome is good so far
  std::vector<size_t> which;               // the job of each
  std::vector<ssd::AlignedBuffer> copies;  // of values that lie in several pieces
  ssd::Backend::Eviction eviction;
  uint32_t attempt = 0;
};

struct FileStorage::Loading {
  LoadObjects message;
  std::vector<rpc::Reply<Loaded>> reply;  // none: only to promote
  bool bring = false;                     // a drain moves it: the master is told what became of it
  Loaded answer;
  ssd::Staging::Batch batch;
  std::vector<ssd::Load> loads;
  std::vector<size_t> which;  // the item of each
};

inline ssd::Stored stored_of(const TierObject& o) {
  return {o.name, o.bytes, o.checksum, o.generation, o.keep_until_s, o.cls};
}
inline TierObject tier_object(const ssd::Stored& o) {
  return {o.key, o.bytes, o.checksum, o.generation, o.keep_until_s, static_cast<uint8_t>(o.klass)};
}

}  // namespace mc::store

// Control messages along a pipeline of prefill processes (chunked pipeline parallelism).
//
// The first process, the head, is a prefill worker. Each other process is a stage with the next
// slice of the layers. A message goes from the head to the second process, and from every stage to
// the next one, in order. A stage answers when it and all after it are done with the message.
//
//   PipelineOpen    the head begins, or begins again: state from before is dropped
//   PipelinePing    periodically: checks that all of them live
//   PipelineFetch   blocks of a prompt that the KV store has
//   PipelineBegin   a prompt: where its KV lies here, and where it goes to
//   PipelineChunk   what the layers before made of some of its tokens
//   PipelineEnd     the prompt was given up
//   PipelinePut     blocks for the KV store
//
// Only the head knows what is cached and which blocks are free: block i of a stage holds the
// stage's layers of what block i of the head holds. A stage that finds the next one gone, or opened
// by another head, says so in its answer; the head then begins again with an empty cache.
//
// Thread: values. Source: Mooncake paper section 5.1 (chunked pipeline parallelism).
#pragma once
#include <string>
#include <vector>

#include "serve/protocol/messages.h"

namespace mc::serve {

struct PipelineOpened {
  static constexpr const char* kName = "stage-opened";
  uint32_t stages = 0;  // from this one on
  wire::Release release{};
  static void fields(auto& a, auto& m) { a(m.stages, m.release); }
};

struct PipelineOpen {
  static constexpr const char* kName = "stage-open";
  using Reply = PipelineOpened;
  uint64_t pipeline = 0;  // a new number for each beginning; in all messages from then on
  std::string fingerprint;
  uint32_t blocks = 0;
  uint32_t first_layer = 0;         // that is to be the receiver's
  std::vector<std::string> others;  // control addresses of the stages after the receiver
  wire::Release release;            // of the head
  uint64_t head = 0;                // differs in each head process; 0: it does not say
  uint64_t beginning = 0;           // of that head, counted from 1: a late one is refused
  static void fields(auto& a, auto& m) {
    a(m.pipeline, m.fingerprint, m.blocks, m.first_layer, wire::at_most<kStagesMax>(m.others),
      m.release, m.head, m.beginning);
  }
};

struct PipelinePing {
  static constexpr const char* kName = "stage-ping";
  using Reply = Empty;
  uint64_t pipeline = 0;
  static void fields(auto& a, auto& m) { a(m.pipeline); }
};

struct PipelineDone {
  static constexpr const char* kName = "stage-done";
  uint64_t kv_bytes = 0;  // sent to the decode worker
  uint64_t tail_us = 0;   // from when all was computed until all was sent
  uint8_t code = 0;       // not 0: sending failed, and with it the request (Code)
  std::string what = {};
  // With the pool connector: what the stages put since they last said so.
  std::vector<PooledPart> pooled = {};
  static void fields(auto& a, auto& m) {
    a(m.kv_bytes, m.tail_us, m.code, m.what, wire::at_most<kStagesMax>(m.pooled));
  }
};

struct PipelineBegin {
  static constexpr const char* kName = "stage-begin";
  using Reply = PipelineDone;
  uint64_t pipeline = 0;
  std::string request;
  std::vector<int32_t> prompt;
  std::string cache_salt;
  Reservation target;            // with its segment's buffers
  std::vector<uint32_t> blocks;  // where it lies, one a block of the prompt
  uint32_t reused = 0;           // blocks whose KV is there
  static void fields(auto& a, auto& m) {
    a(m.pipeline, m.request, wire::at_most<kPromptMax>(m.prompt), m.cache_salt, m.target,
      wire::at_most<kPromptMax>(m.blocks), m.reused);
  }
};

struct PipelineChunk {
  static constexpr const char* kName = "stage-chunk";
  using Reply = PipelineDone;
  static constexpr size_t kRowBytesMax = 8 * kMiB;  // but for one block's, which may have more
  uint64_t pipeline = 0;
  std::string request;
  uint64_t begin = 0, end = 0;  // tokens
  bool last = false;            // of the prompt
  wire::Blob rows;              // [token][hidden] f32 of this machine
  static void fields(auto& a, auto& m) { a(m.pipeline, m.request, m.begin, m.end, m.last, m.rows); }
};

struct PipelineEnd {
  static constexpr const char* kName = "stage-end";
  using Reply = Empty;
  uint64_t pipeline = 0;
  std::string request;
  static void fields(auto& a, auto& m) { a(m.pipeline, m.request); }
};

struct PipelineFetched {
  static constexpr const char* kName = "stage-fetched";
  uint32_t blocks = 0;  // the first so many are there, in all stages that were asked
  static void fields(auto& a, auto& m) { a(m.blocks); }
};

struct PipelineFetch {
  static constexpr const char* kName = "stage-fetch";
  using Reply = PipelineFetched;
  uint64_t pipeline = 0;
  std::vector<BlockHash> hashes;
  std::vector<uint32_t> blocks;  // where each goes
  static void fields(auto& a, auto& m) {
    a(m.pipeline, wire::at_most<kPromptMax>(m.hashes), wire::at_most<kPromptMax>(m.blocks));
  }
};

struct PipelinePut {
  static constexpr const char* kName = "stage-put";
  using Reply = Empty;  // they were put, or given up
  uint64_t pipeline = 0;
  std::vector<BlockHash> hashes;
  std::vector<uint32_t> blocks;
  std::string cls;       // as store::PutConfig has it
  uint64_t keep_ms = 0;  // its time to live
  static void fields(auto& a, auto& m) {
    a(m.pipeline, wire::at_most<kPromptMax>(m.hashes), wire::at_most<kPromptMax>(m.blocks), m.cls,
      m.keep_ms);
  }
};

}  // namespace mc::serve

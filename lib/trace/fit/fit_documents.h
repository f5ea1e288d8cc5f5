// Finds questions about documents in a trace, and fits their profile.
// Several prompts begin with the same blocks, and each continues with its own text. In a
// conversation the shared part and the prompts grow from turn to turn; here neither grows.
//
// Thread: values; any thread. Pure: no clock, no I/O; random numbers from fixed seeds.
#pragma once
#include <vector>

#include "trace/fit/fit.h"
#include "trace/records/records.h"

namespace mc::trace {

struct Document {
  std::vector<size_t> questions;  // requests, in order; two at least
  uint64_t shared = 0;            // leading full blocks that all of them have
};
struct DocumentSplit {
  std::vector<Document> documents;  // in order of their first question
  std::vector<size_t> alone;        // requests that share no full block with another
  bool holds = false;               // the trace is of this kind
};
// The trace is of this kind if at least kDocumentsMin groups have three different prompts, nearly
// all of these groups share the same blocks in every question, and their prompts do not grow one by
// one.
inline constexpr size_t kDocumentsMin = 5;
DocumentSplit split_documents(const Trace& trace);

// Fits a profile of the documents generator. The distance between questions about a document is set
// so that LRU caches of a few sizes hit as on the trace.
Result<Fitted> fit_documents(const Trace& trace, const DocumentSplit& split);

}  // namespace mc::trace

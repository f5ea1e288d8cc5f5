// Questions about documents among the requests of a trace: several prompts begin with the same
// blocks and each goes on with something of its own. In a conversation what is shared grows from
// turn to turn, and so do the prompts; here neither does.
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
// It is where kDocumentsMin groups and more have three different prompts, nearly all of these share
// in every question just what they share in all, and their prompts do not grow one by one.
inline constexpr size_t kDocumentsMin = 5;
DocumentSplit split_documents(const Trace& trace);

// A profile of the documents generator. How soon the questions about a document follow each other
// is set so that LRU caches of a few sizes hit what they do on the trace.
Result<Fitted> fit_documents(const Trace& trace, const DocumentSplit& split);

}  // namespace mc::trace

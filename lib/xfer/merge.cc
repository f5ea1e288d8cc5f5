#include "xfer/merge.h"

namespace mc::xfer {
namespace {

bool alike(const Request& a, const Request& b) {
  return a.op == b.op && a.segment == b.segment && a.priority == b.priority &&
         a.deadline == b.deadline && a.guard.offset == b.guard.offset &&
         a.guard.expected == b.guard.expected;
}

uint64_t apart(const std::byte* from, const std::byte* to) {
  return reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from);
}

// One more row for `run`: the second fixes the strides, the others keep to them.
bool joins_rows(const Request& run, const Request& next) {
  if (next.rows != 1 || next.bytes != run.bytes) return false;
  if (next.offset <= run.offset || next.local <= run.local) return false;
  const uint64_t rows = run.rows;
  const uint64_t local = apart(run.local, next.local), remote = next.offset - run.offset;
  if (local % rows != 0 || remote % rows != 0) return false;
  const uint64_t local_stride = local / rows, remote_stride = remote / rows;
  if (rows > 1) return local_stride == run.local_stride && remote_stride == run.remote_stride;
  return local_stride >= run.bytes && remote_stride >= run.bytes;
}

}  // namespace

std::vector<Run> merge(std::span<const Request> requests, std::span<const Home> homes,
                       uint64_t bytes_max) {
  std::vector<Run> runs, out;
  for (size_t i = 0; i < requests.size(); ++i) {
    const Request& r = requests[i];
    if (!runs.empty() && r.rows == 1 && homes[i] == homes[i - 1] &&
        homes[i].remote != Home::kUnknown) {
      Request& last = runs.back().request;
      if (last.rows == 1 && r.local == last.local + last.bytes &&
          r.offset == last.offset + last.bytes && last.bytes < bytes_max &&
          r.bytes <= bytes_max - last.bytes && alike(last, r)) {
        last.bytes += r.bytes;
        ++runs.back().count;
        continue;
      }
    }
    runs.push_back({r, i, 1});
  }
  for (const Run& next : runs) {
    if (!out.empty() && homes[next.first] == homes[out.back().first] &&
        homes[next.first].remote != Home::kUnknown) {
      Request& last = out.back().request;
      const uint64_t total = last.bytes * last.rows;
      const bool grown = out.back().count > 1 || last.rows == 1;  // not a request's own rows
      if (grown && alike(last, next.request) && total < bytes_max &&
          next.request.bytes <= bytes_max - total && joins_rows(last, next.request)) {
        last.local_stride = apart(last.local, next.request.local) / last.rows;
        last.remote_stride = (next.request.offset - last.offset) / last.rows;
        ++last.rows;
        out.back().count += next.count;
        continue;
      }
    }
    out.push_back(next);
  }
  return out;
}

}  // namespace mc::xfer

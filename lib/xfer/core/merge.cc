#include "xfer/core/merge.h"

#include <algorithm>

namespace mc::xfer {
namespace {

bool alike(const Request& a, const Request& b) {
  return !a.digest && !b.digest && a.op == b.op && a.segment == b.segment &&
         a.priority == b.priority && a.deadline == b.deadline && a.guard.offset == b.guard.offset &&
         a.guard.expected == b.guard.expected && a.guard.raises == b.guard.raises;
}

uint64_t apart(const std::byte* from, const std::byte* to) {
  return reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from);
}

// Is `next` one more row of `run`? The second row sets the strides; the others must have them.
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

// Does `next` lie directly behind `run` on both sides?
bool joins_bytes(const Request& run, const Request& next, uint64_t bytes_max) {
  return run.rows == 1 && next.rows == 1 && next.local == run.local + run.bytes &&
         next.offset == run.offset + run.bytes && run.bytes < bytes_max &&
         next.bytes <= bytes_max - run.bytes && alike(run, next);
}

// Adds `next` as a row of the last merged request, or as a new one.
void add_rows(std::vector<MergedRequest>& out, const MergedRequest& next, bool same_buffer,
              uint64_t bytes_max) {
  if (!out.empty() && same_buffer) {
    Request& last = out.back().request;
    const uint64_t total = last.bytes * last.rows;
    const bool grown = out.back().count > 1 || last.rows == 1;  // not a request's own rows
    if (grown && alike(last, next.request) && total < bytes_max &&
        next.request.bytes <= bytes_max - total && joins_rows(last, next.request)) {
      last.local_stride = apart(last.local, next.request.local) / last.rows;
      last.remote_stride = (next.request.offset - last.offset) / last.rows;
      ++last.rows;
      out.back().count += next.count;
      return;
    }
  }
  out.push_back(next);
}

// `at(i)` is the i-th of n requests, `base_of(i)` its buffers.
template <class At, class BaseOf>
std::vector<MergedRequest> merged(size_t n, const At& at, const BaseOf& base_of,
                                  uint64_t bytes_max) {
  std::vector<MergedRequest> out;
  if (n == 0) return out;
  const auto same_memory = [&](size_t a, size_t b) {
    return base_of(a) == base_of(b) && base_of(a).remote != BufferBase::kUnknown;
  };
  MergedRequest run{at(0), 0, 1};
  const auto end_run = [&] {
    add_rows(out, run, !out.empty() && same_memory(out.back().first, run.first), bytes_max);
  };
  for (size_t i = 1; i < n; ++i) {
    const Request& r = at(i);
    if (joins_bytes(run.request, r, bytes_max) && same_memory(i - 1, i)) {
      run.request.bytes += r.bytes;
      ++run.count;
      continue;
    }
    end_run();
    run = {r, i, 1};
  }
  end_run();
  return out;
}

// Returns: the order of the requests by address at the peer. Empty: they are in that order already,
// or differ in more than their addresses.
std::vector<uint32_t> by_address(std::span<const Request> requests) {
  struct Position {
    uint64_t offset;
    uint32_t index;
  };
  std::vector<Position> positions;
  positions.reserve(requests.size());
  bool sorted = true;
  for (const Request& r : requests) {
    if (!alike(requests[0], r)) return {};
    sorted = sorted && (positions.empty() || positions.back().offset <= r.offset);
    positions.push_back({r.offset, static_cast<uint32_t>(positions.size())});
  }
  if (sorted) return {};
  std::sort(positions.begin(), positions.end(), [](const Position& a, const Position& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.index < b.index;
  });
  std::vector<uint32_t> order;
  order.reserve(positions.size());
  for (const Position& p : positions) order.push_back(p.index);
  return order;
}

}  // namespace

std::vector<MergedRequest> merge(std::span<const Request> requests,
                                 std::span<const BufferBase> bases, uint64_t bytes_max) {
  return merged(
      requests.size(), [&](size_t i) -> const Request& { return requests[i]; },
      [&](size_t i) -> const BufferBase& { return bases[i]; }, bytes_max);
}

MergeResult merge_by_address(std::span<const Request> requests, std::span<const BufferBase> bases,
                             uint64_t bytes_max) {
  MergeResult plain{merge(requests, bases, bytes_max), {}};
  if (plain.runs.size() <= 1) return plain;
  MergeResult sorted{{}, by_address(requests)};
  if (sorted.order.empty()) return plain;
  sorted.runs = merged(
      requests.size(), [&](size_t i) -> const Request& { return requests[sorted.order[i]]; },
      [&](size_t i) -> const BufferBase& { return bases[sorted.order[i]]; }, bytes_max);
  return sorted.runs.size() < plain.runs.size() ? sorted : plain;
}

}  // namespace mc::xfer

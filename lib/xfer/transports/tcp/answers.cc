#include "xfer/transports/tcp/answers.h"

#include "xfer/transports/tcp/tsan_ignore_scope.h"

namespace mc::xfer::tcp {

void Answers::add(std::span<const iovec> payload, BufferPtr pinned) {
  for (const iovec& part : payload) put(part.iov_base, part.iov_len);
  if (pinned_.empty() || pinned_.back() != pinned) pinned_.push_back(std::move(pinned));
}

Result<> Answers::send(Stream& stream, const Stream::GiveUp& give_up) {
  if (parts_.empty()) return {};
  const auto watch = [&]() -> Result<> {
    MC_TRY_(give_up());
    for (const BufferPtr& b : pinned_)
      if (b->withdrawn.load(std::memory_order_acquire))
        return fail(Code::kUnavailable, "the memory was withdrawn meanwhile");
    return {};
  };
  Result<> sent;
  {
    const TsanIgnoreScope order;
    sent = stream.send(parts_, watch);
  }
  forget();
  return sent;
}

void Answers::forget() {
  parts_.clear();
  pinned_.clear();
  headers_used_ = trailers_used_ = 0;
  bytes_ = 0;
}

}  // namespace mc::xfer::tcp

#include "io/uring.h"

#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace mc::io {
namespace {
constexpr Duration kDrainStep = std::chrono::seconds(1);

Failure fail_code(int error, const char* what) {
  errno = error;
  return fail_errno("%s", what);
}
}  // namespace

struct Uring::Impl {
  io_uring ring{};
  unsigned depth = 0, under_way = 0;
  ~Impl() {
    if (depth > 0) io_uring_queue_exit(&ring);
  }
};

Uring::Uring(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

bool Uring::available() {
  static const bool works = [] {
    io_uring ring{};
    if (io_uring_queue_init(2, &ring, 0) != 0) return false;
    const std::unique_ptr<io_uring_probe, decltype(&io_uring_free_probe)> probe(
        io_uring_get_probe_ring(&ring), &io_uring_free_probe);
    const bool has = (ring.features & IORING_FEAT_EXT_ARG) != 0 && probe != nullptr &&
                     io_uring_opcode_supported(probe.get(), IORING_OP_READ) &&
                     io_uring_opcode_supported(probe.get(), IORING_OP_WRITE);
    io_uring_queue_exit(&ring);
    return has;
  }();
  return works;
}

Result<std::unique_ptr<Uring>> Uring::open(const Config& config) {
  if (config.depth == 0 || config.depth > 4096)
    return fail(Code::kInvalid, "io_uring of depth %u: want 1 to 4096", config.depth);
  if (!available())
    return fail(Code::kUnsupported,
                "the kernel refuses io_uring (sysctl kernel.io_uring_disabled, "
                "a seccomp filter, or the kernel is too old)");
  // A kernel that supports it sends fewer interrupts; others get the plain ring.
  const unsigned quiet =
      IORING_SETUP_COOP_TASKRUN |
      (config.one_thread ? IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN : 0u);
  auto impl = std::make_unique<Impl>();
  int error = io_uring_queue_init(config.depth, &impl->ring, quiet);
  if (error == -EINVAL) error = io_uring_queue_init(config.depth, &impl->ring, 0);
  if (error != 0) return fail_code(-error, "io_uring_setup");
  impl->depth = config.depth;
  return std::unique_ptr<Uring>(new Uring(std::move(impl)));
}

Uring::~Uring() {
  End ends[16];
  while (impl_->under_way > 0)
    if (!run(ends, kDrainStep)) return;  // the ring is broken: closing it waits in the kernel
}

Result<> Uring::register_buffers(std::span<const iovec> buffers) {
  const int error = io_uring_register_buffers(&impl_->ring, buffers.data(),
                                              static_cast<unsigned>(buffers.size()));
  if (error == -ENOMEM)
    return fail(Code::kNoSpace, "register buffers with io_uring: raise the limit on locked memory");
  if (error != 0) return fail_code(-error, "register buffers with io_uring");
  return {};
}

unsigned Uring::under_way() const { return impl_->under_way; }
bool Uring::full() const { return impl_->under_way >= impl_->depth; }

void Uring::prepare(const Operation& o) {
  MC_CHECK(!full());
  io_uring_sqe* sqe = io_uring_get_sqe(&impl_->ring);
  MC_CHECK(sqe != nullptr);  // the queue has room for `depth` operations
  if (o.fixed >= 0 && o.write)
    io_uring_prep_write_fixed(sqe, o.fd, o.data, o.bytes, o.offset, o.fixed);
  else if (o.fixed >= 0)
    io_uring_prep_read_fixed(sqe, o.fd, o.data, o.bytes, o.offset, o.fixed);
  else if (o.write)
    io_uring_prep_write(sqe, o.fd, o.data, o.bytes, o.offset);
  else
    io_uring_prep_read(sqe, o.fd, o.data, o.bytes, o.offset);
  sqe->user_data = o.tag;
  ++impl_->under_way;
}

Result<size_t> Uring::run(std::span<End> ends, Duration wait) {
  io_uring* ring = &impl_->ring;
  io_uring_cqe* first = nullptr;
  int error = 0;
  if (wait.count() <= 0 || ends.empty()) {
    error = io_uring_submit(ring);
    if (error >= 0) io_uring_get_events(ring);
  } else {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(wait);
    __kernel_timespec limit{
        seconds.count(),
        std::chrono::duration_cast<std::chrono::nanoseconds>(wait - seconds).count()};
    error = io_uring_submit_and_wait_timeout(ring, &first, 1, &limit, nullptr);
  }
  if (error < 0 && error != -ETIME && error != -EINTR && error != -EAGAIN && error != -EBUSY &&
      error != -ENOMEM)
    return fail_code(-error, "io_uring_enter");
  size_t n = 0;
  io_uring_cqe* cqes[64];
  while (n < ends.size()) {
    const unsigned got = io_uring_peek_batch_cqe(
        ring, cqes, static_cast<unsigned>(std::min<size_t>(std::size(cqes), ends.size() - n)));
    if (got == 0) break;
    for (unsigned i = 0; i < got; ++i) ends[n++] = {cqes[i]->user_data, cqes[i]->res};
    io_uring_cq_advance(ring, got);
  }
  impl_->under_way -= static_cast<unsigned>(n);
  return n;
}

}  // namespace mc::io

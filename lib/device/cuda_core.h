// The primary context and the kernels that a CUDA device's objects share. Memory, streams and
// events of the device keep the context; the last one releases it. Private to cuda*.cc.
//
// Thread: any.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "device/cublaslt.h"
#include "device/cuda.h"
#include "device/device.h"
#include "device/driver.h"

namespace mc::device {

inline Result<> ok(const driver::Driver& d, driver::Status status, const char* call) {
  if (status == driver::kOk) return {};
  return d.failure(status, call);
}

// A context that is this thread's current one while this lives. Then the caller's own is again.
class Entered {
 public:
  explicit Entered(const driver::Driver& d) : d_(&d) {}
  Entered(Entered&& other) noexcept : d_(std::exchange(other.d_, nullptr)) {}
  Entered& operator=(Entered&&) = delete;
  ~Entered() {
    driver::Context ours = nullptr;
    if (d_ != nullptr) (void)d_->context_pop(&ours);
  }

 private:
  const driver::Driver* d_;
};

struct Core {
  static Result<std::shared_ptr<Core>> make(const driver::Driver& d, const Info& info,
                                            const void* kernels, FindProducts find);
  Core(const driver::Driver& driver, Info i, FindProducts f)
      : d(driver), info(std::move(i)), find_products(f) {}
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;
  ~Core();
  // Before every call into the driver.
  Result<Entered> enter() const {
    MC_TRY_(ok(d.context_push(context), "cuCtxPushCurrent"));
    return Entered(d);
  }
  Result<> ok(driver::Status status, const char* call) const {
    if (status == driver::kOk) return {};
    const std::string what = info.location() + ": " + call;
    return d.failure(status, what.c_str());
  }

  // The kernel of that name. kUnsupported says why there are none.
  Result<driver::Function> function(const char* name);

  // The library of matrix products, opened on first use.
  Result<cublaslt::CublasLt*> products();

  const driver::Driver& d;
  Info info;
  const FindProducts find_products;  // null: without
  int device = 0;
  driver::Context context = nullptr;
  driver::Module module = nullptr;
  driver::Function copy_blocks = nullptr, copy_rows = nullptr;  // null: without kernels
  Mutex mutex;
  std::map<std::string, driver::Function> functions MC_GUARDED_BY(mutex);
  std::unique_ptr<cublaslt::CublasLt> opened_products MC_GUARDED_BY(mutex);
  std::optional<Error> without_products MC_GUARDED_BY(mutex);
};
using CorePtr = std::shared_ptr<Core>;

Result<std::unique_ptr<Stream>> open_cuda_stream(const CorePtr& core);

}  // namespace mc::device

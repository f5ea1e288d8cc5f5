// Loads cuBLASLt, NVIDIA's matrix products, as one table of functions. The library is loaded on
// first use; neither the build nor the programs need it. The declarations are our own, of the few
// functions that are used, named as the library's are. Private to the cuda device; tests load a
// library of their own.
//
// The algorithm of a product depends on the weights' shape alone, never on the rows, and may not
// cut the sums into parts. So a row's numbers do not depend on what is computed with it, provided
// that the library sums each output in one order (gpu/gemm_dispatcher.h tests that).
//
// Thread: any.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "base/mutex.h"
#include "device/device.h"
#include "device/driver.h"

namespace mc::device::cublaslt {

using Status = int;  // cublasStatus_t
using Handle = struct HandleTag*;
using Operation = struct OperationTag*;    // cublasLtMatmulDesc_t
using Layout = struct LayoutTag*;          // cublasLtMatrixLayout_t
using Preference = struct PreferenceTag*;  // cublasLtMatmulPreference_t

// The numbers of cublasLt.h, cublas_api.h and library_types.h.
inline constexpr Status kOk = 0, kNotInitialized = 1, kAllocFailed = 3, kArchMismatch = 8,
                        kNotSupported = 15;
inline constexpr int kCompute32F = 68;                               // sums in f32
inline constexpr int kTypeF32 = 0, kTypeF16 = 2, kTypeBf16 = 14;     // cudaDataType
inline constexpr int kTransposeA = 3, kTransposeB = 4;               // of an operation
inline constexpr int32_t kAsIs = 0, kTransposed = 1;                 // cublasOperation_t
inline constexpr int kWorkspaceMost = 1, kReductionSchemesMask = 3;  // of a preference

struct Algorithm {
  uint64_t data[8];
};
struct Heuristic {
  Algorithm algorithm;
  size_t workspace;
  Status state;
  float waves;
  int reserved[4];
};
static_assert(sizeof(Heuristic) == 96);

struct Library {
  Status (*create)(Handle*);
  Status (*destroy)(Handle);
  size_t (*version)();  // 130100: 13.1.0
  Status (*operation_create)(Operation*, int compute, int scale_type);
  Status (*operation_destroy)(Operation);
  Status (*operation_set)(Operation, int attribute, const void*, size_t);
  Status (*layout_create)(Layout*, int type, uint64_t rows, uint64_t columns, int64_t stride);
  Status (*layout_destroy)(Layout);
  Status (*preference_create)(Preference*);
  Status (*preference_destroy)(Preference);
  Status (*preference_set)(Preference, int attribute, const void*, size_t);
  Status (*heuristic)(Handle, Operation, Layout a, Layout b, Layout c, Layout d, Preference,
                      int asked, Heuristic*, int* found);
  Status (*multiply)(Handle, Operation, const void* alpha, const void* a, Layout, const void* b,
                     Layout, const void* beta, const void* c, Layout, void* d, Layout,
                     const Algorithm*, void* workspace, size_t, driver::StreamHandle);
  std::string name() const;  // "cuBLASLt 13.1.0"
};

// `library` is the name of a shared object. kUnsupported says what is missing.
Result<Library> load(const char* library);
// The newest that this machine has, the same for the life of the process.
const Result<Library>& loaded();

// Multiplies matrices on one device. Thread: any whose current context is the device's.
class CublasLt {
 public:
  static Result<std::unique_ptr<CublasLt>> open(const Library& library);
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;
  std::string name() const { return library_.name(); }
  // kUnsupported: the library has no algorithm for it, or not so many.
  Result<> multiply(const Product& product, driver::StreamHandle stream);

 private:
  using Shape = std::tuple<Product::Type, uint32_t, uint32_t, uint32_t>;  // outputs, k, tuned_rows
  struct Call;
  explicit CublasLt(const Library& library) : library_(library) {}
  Result<> describe(const Product& product, uint64_t rows, Call& call) const;
  Result<Algorithm> algorithm(const Product& product);

  const Library& library_;
  Handle handle_ = nullptr;
  Mutex mutex_;
  std::map<Shape, std::vector<Algorithm>> algorithms_ MC_GUARDED_BY(mutex_);  // the best first
};

}  // namespace mc::device::cublaslt

#include "device/cublaslt.h"

#include <algorithm>
#include <array>

#include "base/symbols.h"

namespace mc::device::cublaslt {
namespace {

// The number of rows that an algorithm is chosen for, if the product names none.
constexpr uint64_t kManyRows = 1024;
constexpr int kChoicesMax = 8;

Result<> ok(Status status, const char* call) {
  switch (status) {
    case kOk: return {};
    case kAllocFailed: return fail(Code::kNoSpace, "%s: out of memory", call);
    case kNotInitialized:
      return fail(Code::kUnsupported, "%s: the library does not start on this device", call);
    case kArchMismatch:
    case kNotSupported:
      return fail(Code::kUnsupported, "%s: not for this device and shape (status %d)", call,
                  status);
    default: return fail(Code::kInternal, "%s: status %d", call, status);
  }
}

int type_of(Product::Type type) {
  switch (type) {
    case Product::Type::kF32: return kTypeF32;
    case Product::Type::kF16: return kTypeF16;
    case Product::Type::kBf16: return kTypeBf16;
  }
  return kTypeF32;
}

}  // namespace

std::string Library::name() const {
  const size_t v = version();
  return strf("cuBLASLt %zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
}

Result<Library> load(const char* library) {
  MC_TRY(Symbols l, Symbols::open(library, "cuBLASLt"));
  Library f{};
  l.need(f.create, "cublasLtCreate");
  l.need(f.destroy, "cublasLtDestroy");
  l.need(f.version, "cublasLtGetVersion");
  l.need(f.operation_create, "cublasLtMatmulDescCreate");
  l.need(f.operation_destroy, "cublasLtMatmulDescDestroy");
  l.need(f.operation_set, "cublasLtMatmulDescSetAttribute");
  l.need(f.layout_create, "cublasLtMatrixLayoutCreate");
  l.need(f.layout_destroy, "cublasLtMatrixLayoutDestroy");
  l.need(f.preference_create, "cublasLtMatmulPreferenceCreate");
  l.need(f.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  l.need(f.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  l.need(f.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  l.need(f.multiply, "cublasLtMatmul");
  if (l.missing().empty()) return f;  // it stays loaded
  l.close();
  return fail(Code::kUnsupported, "%s has no %s: it is no cuBLASLt", library, l.missing().c_str());
}

const Result<Library>& loaded() {
  static const Result<Library> library = [] {
    Result<Library> last = load("libcublasLt.so.13");
    for (const char* const older : {"libcublasLt.so.12", "libcublasLt.so.11"}) {
      if (last) return last;
      if (auto next = load(older)) last = std::move(next);
    }
    return last;
  }();
  return library;
}

// The library's descriptors of a product; the destructor frees them.
struct CublasLt::Call {
  explicit Call(const Library& l) : library(l) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() {
    if (operation != nullptr) (void)library.operation_destroy(operation);
    for (const Layout layout : {w, x, y})
      if (layout != nullptr) (void)library.layout_destroy(layout);
    if (preference != nullptr) (void)library.preference_destroy(preference);
  }
  const Library& library;
  Operation operation = nullptr;
  Layout w = nullptr, x = nullptr, y = nullptr;
  Preference preference = nullptr;
};

Result<std::unique_ptr<CublasLt>> CublasLt::open(const Library& library) {
  std::unique_ptr<CublasLt> p(new CublasLt(library));
  MC_TRY_(ok(library.create(&p->handle_), "cublasLtCreate"));
  return p;
}

CublasLt::~CublasLt() {
  if (handle_ != nullptr) (void)library_.destroy(handle_);
}

// The library's matrices are column-major: our rows are its columns, and with w transposed, y = x
// w' is its y' = w x'.
Result<> CublasLt::describe(const Product& p, uint64_t rows, Call& call) const {
  const int type = type_of(p.type);
  const auto k = static_cast<int64_t>(p.k), outputs = static_cast<int64_t>(p.outputs);
  MC_TRY_(ok(library_.operation_create(&call.operation, kCompute32F, kTypeF32),
             "cublasLtMatmulDescCreate"));
  for (const auto& [attribute, value] : {std::pair(kTransposeA, kTransposed), {kTransposeB, kAsIs}})
    MC_TRY_(ok(library_.operation_set(call.operation, attribute, &value, sizeof value),
               "cublasLtMatmulDescSetAttribute"));
  const char* const what = "cublasLtMatrixLayoutCreate";
  MC_TRY_(ok(library_.layout_create(&call.w, type, p.k, p.outputs, k), what));
  MC_TRY_(ok(library_.layout_create(&call.x, type, p.k, rows, k), what));
  return ok(library_.layout_create(&call.y, kTypeF32, p.outputs, rows, outputs), what);
}

Result<Algorithm> CublasLt::algorithm(const Product& p) {
  const auto chosen = [&p](const std::vector<Algorithm>& all) -> Result<Algorithm> {
    if (p.choice < all.size()) return all[p.choice];
    return fail(Code::kUnsupported, "cuBLASLt has %zu algorithms for %u outputs of %u", all.size(),
                p.outputs, p.k);
  };
  const Shape shape{p.type, p.outputs, p.k, p.tuned_rows};
  Lock lock(mutex_);
  if (const auto it = algorithms_.find(shape); it != algorithms_.end()) return chosen(it->second);
  Call call(library_);
  MC_TRY_(describe(p, p.tuned_rows > 0 ? p.tuned_rows : kManyRows, call));
  MC_TRY_(ok(library_.preference_create(&call.preference), "cublasLtMatmulPreferenceCreate"));
  const uint64_t no_workspace = 0;
  const uint32_t no_reductions = 0;
  const char* const what = "cublasLtMatmulPreferenceSetAttribute";
  MC_TRY_(ok(
      library_.preference_set(call.preference, kWorkspaceMost, &no_workspace, sizeof no_workspace),
      what));
  MC_TRY_(ok(library_.preference_set(call.preference, kReductionSchemesMask, &no_reductions,
                                     sizeof no_reductions),
             what));
  std::array<Heuristic, kChoicesMax> best{};
  int found = 0;
  MC_TRY_(ok(library_.heuristic(handle_, call.operation, call.w, call.x, call.y, call.y,
                                call.preference, kChoicesMax, best.data(), &found),
             "cublasLtMatmulAlgoGetHeuristic"));
  std::vector<Algorithm>& all = algorithms_[shape];
  for (int i = 0; i < std::min(found, kChoicesMax); ++i) {
    const Heuristic& h = best[static_cast<size_t>(i)];
    if (h.state == kOk && h.workspace == 0) all.push_back(h.algorithm);
  }
  return chosen(all);
}

Result<> CublasLt::multiply(const Product& p, driver::StreamHandle stream) {
  if (p.rows == 0) return {};
  MC_TRY(const Algorithm chosen, algorithm(p));
  Call call(library_);
  MC_TRY_(describe(p, p.rows, call));
  const float one = 1, kept = p.add ? 1 : 0;
  return ok(library_.multiply(handle_, call.operation, &one, p.w, call.w, p.x, call.x, &kept, p.y,
                              call.y, p.y, call.y, &chosen, nullptr, 0, stream),
            "cublasLtMatmul");
}

}  // namespace mc::device::cublaslt

// A libcublasLt.so for tests: the calls that device/cublaslt.cc makes, computed by the host in
// double. It is strict: a matrix of another shape or format than it was told of, an algorithm or a
// handle that it did not give out is an error. Tests steer it through two numbers it exports.
//
// With CUBLASLT_STAND_IN_LACKS=1 it has no cublasLtMatmul.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

extern "C" {
int cublaslt_stand_in_fails = 0;   // what cublasLtMatmul ends with
int cublaslt_stand_in_uneven = 0;  // 1: few rows are summed in another order
int cublaslt_stand_in_alive = 0;   // what was created and not destroyed
int cublaslt_stand_in_few = 1;     // algorithms for few rows; but for the last, of other orders
int cublaslt_stand_in_last = -1;   // which of them multiplied last; -1: the one for many rows

struct Operation {
  int compute = 0, scale = 0, transpose_a = 0, transpose_b = 0;
};
struct Layout {
  int type = 0;
  uint64_t rows = 0, columns = 0;
  int64_t stride = 0;
};
struct Preference {
  uint64_t workspace = 1;
  uint32_t reductions = ~0u;
};
struct Algorithm {
  uint64_t data[8];
};
struct Heuristic {
  Algorithm algorithm;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
struct Handle {
  int mark = 0;
};

constexpr int kOk = 0, kInvalid = 7, kUnsupported = 15;
constexpr int kMark = 20250101;
constexpr uint64_t kFirstWord = 0x5ca1ab1e, kFew = 64;

int cublasLtCreate(Handle** h) { return ++cublaslt_stand_in_alive, *h = new Handle{kMark}, kOk; }
int cublasLtDestroy(Handle* h) { return --cublaslt_stand_in_alive, delete h, kOk; }
size_t cublasLtGetVersion() { return 130100; }

int cublasLtMatmulDescCreate(Operation** o, int compute, int scale) {
  return ++cublaslt_stand_in_alive, *o = new Operation{compute, scale, 0, 0}, kOk;
}
int cublasLtMatmulDescDestroy(Operation* o) { return --cublaslt_stand_in_alive, delete o, kOk; }
int cublasLtMatmulDescSetAttribute(Operation* o, int attribute, const void* value, size_t n) {
  int32_t number = 0;
  if (n != sizeof number) return kInvalid;
  std::memcpy(&number, value, n);
  if (attribute == 3) return o->transpose_a = number, kOk;
  if (attribute == 4) return o->transpose_b = number, kOk;
  return kInvalid;
}

int cublasLtMatrixLayoutCreate(Layout** l, int type, uint64_t rows, uint64_t columns, int64_t ld) {
  if (type != 0 && type != 2 && type != 14) return kUnsupported;
  return ++cublaslt_stand_in_alive, *l = new Layout{type, rows, columns, ld}, kOk;
}
int cublasLtMatrixLayoutDestroy(Layout* l) { return --cublaslt_stand_in_alive, delete l, kOk; }

int cublasLtMatmulPreferenceCreate(Preference** p) {
  return ++cublaslt_stand_in_alive, *p = new Preference, kOk;
}
int cublasLtMatmulPreferenceDestroy(Preference* p) {
  return --cublaslt_stand_in_alive, delete p, kOk;
}
int cublasLtMatmulPreferenceSetAttribute(Preference* p, int attribute, const void* value,
                                         size_t n) {
  if (attribute == 1 && n == 8) return std::memcpy(&p->workspace, value, n), kOk;
  if (attribute == 3 && n == 4) return std::memcpy(&p->reductions, value, n), kOk;
  return kInvalid;
}

// Whether d = a' b is what the layouts say, sums and d in f32.
static bool fits(const Operation& o, const Layout& a, const Layout& b, const Layout& d) {
  return o.compute == 68 && o.scale == 0 && o.transpose_a == 1 && o.transpose_b == 0 &&
         a.rows == b.rows && d.rows == a.columns && d.columns == b.columns && a.type == b.type &&
         d.type == 0 && a.stride == int64_t(a.rows) && b.stride == int64_t(b.rows) &&
         d.stride == int64_t(d.rows);
}

// An algorithm is good for one shape of a, as it was asked for; one for few rows for few.
int cublasLtMatmulAlgoGetHeuristic(Handle* h, Operation* o, Layout* a, Layout* b, Layout* c,
                                   Layout* d, Preference* p, int asked, Heuristic* out,
                                   int* found) {
  if (h->mark != kMark || asked < 1 || c != d || !fits(*o, *a, *b, *d)) return kInvalid;
  if (p->workspace != 0 || p->reductions != 0) return kInvalid;
  const bool few = b->columns <= kFew;
  *found = std::min(asked, few ? cublaslt_stand_in_few : 1);
  for (int i = 0; i < *found; ++i)
    out[i] = {{{kFirstWord, a->rows, a->columns, uint64_t(a->type), few, uint64_t(i),
                few && i + 1 < cublaslt_stand_in_few}},
              0,
              kOk,
              1.0f,
              {}};
  return kOk;
}

#ifndef CUBLASLT_STAND_IN_LACKS
static double number(const void* at, int type, uint64_t i) {
  if (type == 0) return static_cast<const float*>(at)[i];
  const uint16_t bits = static_cast<const uint16_t*>(at)[i];
  if (type == 14) {
    const uint32_t wide = uint32_t{bits} << 16;
    float value = 0;
    return std::memcpy(&value, &wide, sizeof value), value;
  }
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double size =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000) != 0 ? -size : size;
}

int cublasLtMatmul(Handle* h, Operation* o, const void* alpha, const void* a, Layout* la,
                   const void* b, Layout* lb, const void* beta, const void* c, Layout* lc, void* d,
                   Layout* ld, const Algorithm* algorithm, void* workspace, size_t bytes,
                   void* stream) {
  if (h->mark != kMark || stream == nullptr || workspace != nullptr || bytes != 0 || lc != ld ||
      c != d || !fits(*o, *la, *lb, *ld))
    return kInvalid;
  for (const void* const at : {a, b, static_cast<const void*>(d)})  // as algorithms are chosen for
    if (reinterpret_cast<uintptr_t>(at) % 256 != 0) return kInvalid;
  if (algorithm->data[0] != kFirstWord || algorithm->data[1] != la->rows ||
      algorithm->data[2] != la->columns || algorithm->data[3] != uint64_t(la->type))
    return kUnsupported;
  const bool few = algorithm->data[4] != 0, other_order = algorithm->data[6] != 0;
  if (few && lb->columns > kFew) return kUnsupported;
  cublaslt_stand_in_last = few ? int(algorithm->data[5]) : -1;
  if (cublaslt_stand_in_fails != 0) return cublaslt_stand_in_fails;
  const double one = *static_cast<const float*>(alpha), kept = *static_cast<const float*>(beta);
  float* const out = static_cast<float*>(d);
  for (uint64_t column = 0; column < ld->columns; ++column)
    for (uint64_t row = 0; row < ld->rows; ++row) {
      double sum = 0;
      for (uint64_t i = 0; i < la->rows; ++i)
        sum += number(a, la->type, row * la->rows + i) * number(b, lb->type, column * lb->rows + i);
      if ((cublaslt_stand_in_uneven != 0 && ld->columns < 16) || other_order) sum *= 1 + 1e-6;
      float& at = out[column * ld->rows + row];
      at = static_cast<float>(one * sum + (kept == 0 ? 0 : kept * static_cast<double>(at)));
    }
  return kOk;
}
#endif
}

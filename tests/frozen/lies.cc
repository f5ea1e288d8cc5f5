// F22: no control message takes more than 32 MiB when it is decoded, however its sender lies: it
// may list as many elements as fit, each of a single byte, in every list of it and in lists of
// those.
#include <malloc.h>

#include <algorithm>
#include <concepts>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "messages.h"

namespace {
size_t live = 0, peak = 0;  // bytes that operator new gave out
}  // namespace

void* operator new(size_t n) {
  void* const p = std::malloc(n);
  if (p == nullptr) std::abort();
  live += ::malloc_usable_size(p);
  peak = std::max(peak, live);
  return p;
}
void operator delete(void* p) noexcept {
  live -= ::malloc_usable_size(p);
  std::free(p);
}
void operator delete(void* p, size_t) noexcept { operator delete(p); }

namespace mc {
namespace {

constexpr size_t kPeakMax = 32 << 20;

// Writes the largest message that fields() allows.
class Liar {
 public:
  struct Lie {
    size_t depth;  // elements at this depth of lists have no fields
    size_t inner;  // elements of a list in another
    bool beyond;   // more elements than are allowed
  };
  explicit Liar(const Lie& lie) : lie_(lie) {}
  template <class... F>
  void operator()(F&&... f) {
    if (lists_ > lie_.depth) return array(0);
    array(sizeof...(F));
    (put(f), ...);
  }
  template <class... F>
  void lean(F&&... f) {
    (*this)(f...);
  }
  std::string take() { return std::move(out_); }

 private:
  void array(size_t n) {
    if (n < 16) {
      byte(0x90 | n);
    } else {
      byte(0xdd);
      for (int shift = 24; shift >= 0; shift -= 8) byte(n >> shift & 0xff);
    }
  }
  void byte(size_t v) { out_ += static_cast<char>(v); }
  void put(bool) { byte(0xc2); }
  void put(double) { byte(0); }
  void put(const std::string&) { byte(0xa0); }
  void put(const wire::Blob&) {
    byte(0xc4);
    byte(0);
  }
  void put(const BlockHash& v) {
    byte(0xc4);
    byte(v.bytes.size());
    out_.append(v.bytes.size(), 'x');
  }
  void put(const Bytes&) { byte(0); }
  void put(const Generation&) { byte(0); }
  template <std::integral T>
  void put(T) {
    byte(0);
  }
  template <size_t N, class T>
  void put(wire::AtMost<N, std::vector<T>>&) {
    ++lists_;
    const std::string before = std::exchange(out_, {});
    T one{};
    put(one);
    const std::string element = std::exchange(out_, before);
    --lists_;
    const size_t room = wire::kMessageBytesMax - std::min(wire::kMessageBytesMax, out_.size() + 64),
                 most = lists_ > 0 ? std::min(N, lie_.inner) : N;
    const size_t n = std::min(lie_.beyond ? 2 * most + 1 : most, room / element.size());
    array(n);
    const size_t begin = out_.size(), end = begin + n * element.size();
    if (n > 0) out_ += element;
    while (out_.size() < end)  // twice as many each time
      out_.append(out_, begin, std::min(out_.size() - begin, end - out_.size()));
  }
  template <class T>
  requires requires(T& t, Liar& liar) { T::fields(liar, t); }
  void put(T& t) { T::fields(*this, t); }

  const Lie lie_;
  std::string out_;
  size_t lists_ = 0;  // around what is written
};

struct Decoder {
  template <class... M>
  void all() const {
    (tell<M>(), ...);
  }
  template <class M>
  void tell() const {
    std::set<std::string> told;
    for (const size_t depth : {size_t{0}, size_t{1}, size_t{2}})
      for (const size_t inner : {size_t{1}, size_t{16}, SIZE_MAX / 4})
        for (const bool beyond : {false, true}) {
          Liar liar({depth, inner, beyond});
          M example{};
          M::fields(liar, example);
          if (const auto [lie, fresh] = told.insert(liar.take()); fresh) tell<M>(*lie);
        }
  }
  template <class M>
  void tell(const std::string& bytes) const {
    const size_t before = live;
    peak = live;
    const bool taken = wire::decode<M>(bytes).has_value();
    const size_t took = peak - before;
    if (took > 4 << 20)
      std::printf("%s: %zu bytes, %s, took %zu KiB\n", M::kName, bytes.size(),
                  taken ? "taken" : "refused", took >> 10);
    if (took >= kPeakMax) {
      std::printf("%s: that is more than %zu KiB\n", M::kName, kPeakMax >> 10);
      std::exit(1);
    }
  }
};

}  // namespace
}  // namespace mc

int main() {
  mc::each_message(mc::Decoder());
  return 0;
}

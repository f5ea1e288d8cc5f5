// The library of matrix products: the real loading and calls of device/cublaslt.cc, over the CUDA
// device in host memory and a library that multiplies there.
#include <dlfcn.h>

#include <cmath>

#include "device/cublaslt.h"
#include "small_model.h"
#include "tests/build_folder.h"

using namespace mc;
using namespace mc::gpu;
using device::must;
using model::DType;

namespace {

const std::string kWhole = build_folder() + "/libcublaslt-0-stand-in.so";
const std::string kPart = build_folder() + "/libcublaslt-1-stand-in.so";

const Result<device::cublaslt::Library>& library() {
  static const auto loaded = device::cublaslt::load(kWhole.c_str());
  return loaded;
}
const Result<device::cublaslt::Library>& no_library() {
  static const auto missing = device::cublaslt::load("libcublasLt-of-nobody.so.99");
  return missing;
}

// A number that the library exports; as it was at the end.
struct Knob {
  explicit Knob(const char* name) {
    must(library());
    void* const handle = ::dlopen(kWhole.c_str(), RTLD_NOW | RTLD_NOLOAD);
    REQUIRE(handle != nullptr);
    at = static_cast<int*>(::dlsym(handle, name));
    ::dlclose(handle);
    REQUIRE(at != nullptr);
    before = *at;
  }
  ~Knob() { *at = before; }
  int* at = nullptr;
  int before = 0;
};

device::DevicePtr with(device::FindProducts find) {
  return must(device::open_cuda(device::fake::driver_without_graphs(), 0, "an image", find));
}

model::ModelConfig eights() {
  model::ModelConfig c = small_config();
  c.head_dim = 24;
  c.hidden = 72;
  return c;
}

// The logits of a prompt, `chunk` rows at a time.
std::vector<float> logits(Transformer& t, const std::vector<int32_t>& tokens, size_t chunk) {
  return prefill(t, Blocks(t.config(), t.kv(), tokens.size()), tokens, chunk);
}

double apart(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0, most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::fabs(double{a[i]} - b[i]));
    most = std::max(most, std::fabs(double{b[i]}));
  }
  return worst / most;
}

constexpr model::KvLayout kLayout{DType::kBf16, 16};

Result<std::unique_ptr<Transformer>> opened(device::FindProducts find, Gemm gemm,
                                            DType weights = DType::kBf16,
                                            DType factors = DType::kBf16) {
  model::ThreadPool threads(1);
  return Transformer::open(with(find), eights(), model::random_sources(eights(), 7), weights,
                           kLayout, threads, {factors, gemm});
}

}  // namespace

TEST_CASE("a complete cuBLASLt is loaded, and an incomplete one is reported") {
  CHECK(must(library()).name() == "cuBLASLt 13.1.0");
  const auto part = device::cublaslt::load(kPart.c_str());
  REQUIRE_FALSE(part.has_value());
  CHECK(part.error().what.find("has no cublasLtMatmul") != std::string::npos);
  REQUIRE_FALSE(no_library().has_value());
  CHECK(no_library().error().code == Code::kUnsupported);
  CHECK(no_library().error().what.starts_with("no cuBLASLt: libcublasLt-of-nobody"));
}

TEST_CASE("products of every format are right, whether they are added or not") {
  const auto device = with(&library);
  CHECK(must(device->products()) == "cuBLASLt 13.1.0");
  const auto stream = must(device->open_stream());
  for (const DType type : {DType::kF32, DType::kF16, DType::kBf16}) {
    CAPTURE(model::name(type));
    constexpr uint32_t kOutputs = 5, kK = 16, kRows = 3;
    std::vector<float> w(kOutputs * kK), x(kRows * kK), y(kRows * kOutputs, 100.0f);
    for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i % 7) - 3;
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 5) / 4;
    const auto put = [&](const std::vector<float>& values, DType as) {
      std::vector<std::byte> bytes(values.size() * size_of(as));
      model::from_floats(as, values.data(), bytes.data(), values.size());
      const device::Memory memory = must(device->allocate(bytes.size()));
      device::put(*stream, memory.data(), bytes);
      return memory;
    };
    const auto on_w = put(w, type), on_x = put(x, type), on_y = put(y, DType::kF32);
    using Type = device::Product::Type;
    const Type named = type == DType::kF32   ? Type::kF32
                       : type == DType::kF16 ? Type::kF16
                                             : Type::kBf16;
    for (const bool add : {false, true}) {
      must(stream->multiply(
          {named, on_w.data(), on_x.data(), on_y.data(), kOutputs, kK, kRows, add}));
      const auto bytes = device::get(*stream, on_y.data(), y.size() * sizeof(float));
      std::memcpy(y.data(), bytes.data(), bytes.size());
      for (uint32_t r = 0; r < kRows; ++r)
        for (uint32_t o = 0; o < kOutputs; ++o) {
          float want = 0;
          for (uint32_t k = 0; k < kK; ++k) want += x[r * kK + k] * w[o * kK + k];
          CHECK(y[r * kOutputs + o] == (add ? 2 : 1) * want);
        }
    }
  }
}

TEST_CASE("a pass whose products are the library's is near the own kernels', however it is cut") {
  const Knob alive("cublaslt_stand_in_alive");
  const int before = *alive.at;
  {
    const auto tokens = tokens_of(50, 1, eights().vocab);
    const auto own = must(opened(&library, Gemm::kOwn));
    CHECK(own->gemm().by() == "own kernels (as requested)");
    const auto fast = must(opened(&library, Gemm::kAuto));
    CHECK(fast->gemm().by() == "cuBLASLt 13.1.0");
    const auto want = logits(*own, tokens, 50), got = logits(*fast, tokens, 50);
    CHECK(got != want);  // it was the library
    CHECK(apart(got, want) < 0.02);
    CHECK(logits(*fast, tokens, 17) == got);
    // f32 through the library too, if it is requested.
    const auto exact = must(opened(&library, Gemm::kAuto, DType::kF32, DType::kF32));
    CHECK_FALSE(exact->gemm().by_library());
    const auto single = must(opened(&library, Gemm::kLibrary, DType::kF32, DType::kF32));
    CHECK(single->gemm().by_library());
    CHECK(apart(logits(*single, tokens, 50), logits(*exact, tokens, 50)) < 1e-4);
  }
  CHECK(*alive.at == before);
}

TEST_CASE("few rows get the best algorithm for few whose bits are those of many") {
  const Knob choices("cublaslt_stand_in_few"), last("cublaslt_stand_in_last");
  const auto tokens = tokens_of(80, 1, eights().vocab);
  *choices.at = 0;
  const auto plain = must(opened(&library, Gemm::kAuto));
  const auto want = logits(*plain, tokens, 80);
  CHECK(logits(*plain, tokens, 7) == want);
  CHECK(*last.at == -1);  // none is for few: all rows by the one for many
  for (const int n : {1, 3, 20}) {
    CAPTURE(n);
    *choices.at = n;
    const auto t = must(opened(&library, Gemm::kAuto));
    CHECK(t->gemm().by_library());
    CHECK(logits(*t, tokens, 40) == want);
    // The last that it has; of more than are looked at, none.
    CHECK(*last.at == (n < 8 ? n - 1 : -1));
    CHECK(logits(*t, tokens, 80) == want);
    CHECK(*last.at == -1);
  }
}

TEST_CASE("without a library own kernels multiply, unless --gemm demands the library") {
  const auto own = must(opened(&no_library, Gemm::kAuto));
  CHECK(own->gemm().by().starts_with("own kernels (no cuBLASLt: libcublasLt-of-nobody"));
  const auto refused = opened(&no_library, Gemm::kLibrary);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().code == Code::kUnsupported);
  CHECK(refused.error().what.find("give --gemm own") != std::string::npos);
  const auto mixed = opened(&library, Gemm::kLibrary, DType::kBf16, DType::kF32);
  REQUIRE_FALSE(mixed.has_value());
  CHECK(mixed.error().what.find("weights of bf16 with activations of f32") != std::string::npos);
  model::ThreadPool threads(1);
  const auto stand_in =
      Transformer::open(device::open_kind("stand-in"), eights(), model::random_sources(eights(), 7),
                        DType::kBf16, kLayout, threads, {DType::kBf16, Gemm::kLibrary});
  REQUIRE_FALSE(stand_in.has_value());
  CHECK(stand_in.error().what.find("no library of matrix products") != std::string::npos);
}

TEST_CASE("a library whose rows depend on other rows is not used") {
  const Knob uneven("cublaslt_stand_in_uneven");
  *uneven.at = 1;
  const auto t = must(opened(&library, Gemm::kAuto));
  CHECK_FALSE(t->gemm().by_library());
  CHECK(t->gemm().by().find("depends on those beside it") != std::string::npos);
}

TEST_CASE("after a failure of the library own kernels multiply, permanently") {
  const Knob fails("cublaslt_stand_in_fails");
  const auto tokens = tokens_of(30, 2, eights().vocab);
  const auto own = must(opened(&library, Gemm::kOwn));
  const auto t = must(opened(&library, Gemm::kAuto));
  REQUIRE(t->gemm().by_library());
  *fails.at = 13;  // an execution that failed
  CHECK(logits(*t, tokens, 30) == logits(*own, tokens, 30));
  CHECK(t->gemm().by() == "own kernels (cublasLtMatmul: status 13)");
  *fails.at = 0;
  CHECK(logits(*t, tokens, 30) == logits(*own, tokens, 30));
}

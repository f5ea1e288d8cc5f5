// Allocates large tables that are read at random in huge pages. A read then misses the cache but
// not the TLB too. The kernel must allow transparent huge pages (`always` or `madvise`). Tables
// below kHugeFrom are ordinary memory. All begin at a cache line.
//
// Thread: any.
#pragma once
#include <cstddef>
#include <new>
#include <utility>

namespace mc {

inline constexpr std::size_t kHugePage = std::size_t{2} << 20;
inline constexpr std::size_t kHugeFrom = 16 * kHugePage;  // below, rounding up would show

void* huge_allocate(std::size_t bytes);  // throws std::bad_alloc
void huge_free(void* memory, std::size_t bytes);

template <class T>
struct HugePages {
  using value_type = T;
  HugePages() = default;
  template <class U>
  HugePages(const HugePages<U>&) {}
  T* allocate(std::size_t n) { return static_cast<T*>(huge_allocate(n * sizeof(T))); }
  void deallocate(T* memory, std::size_t n) { huge_free(memory, n * sizeof(T)); }
  bool operator==(const HugePages&) const = default;
};

// Huge pages that are 0 until they are written, and take memory only where they are touched.
class ZeroedPages {
 public:
  explicit ZeroedPages(std::size_t bytes);  // throws std::bad_alloc
  ~ZeroedPages();
  ZeroedPages(ZeroedPages&& o) noexcept
      : mapped_(std::exchange(o.mapped_, nullptr)), length_(o.length_), data_(o.data_) {}
  ZeroedPages& operator=(ZeroedPages&&) = delete;
  void* data() const { return data_; }  // begins at a huge page

 private:
  void* mapped_;
  std::size_t length_;
  void* data_;
};

}  // namespace mc

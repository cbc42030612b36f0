// Working memory.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>

#ifdef __linux__
#include <sys/mman.h>
#endif

// A loop is compiled once for one thread and once for several. What it calls must not be: two copies of the same sums may
// round differently.
#define ASTERISM_ONE_COPY __attribute__((noinline))

namespace {

constexpr int64_t kAlignment = 64;  // bytes: a line of the cache, and a whole vector

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// Working memory of one thread, kept between calls. Raw bytes, because floats, bit masks and bfloat16 lie in it.
class Scratch {
 public:
  Scratch(int64_t bytes, bool poison) : size_((bytes + kAlignment - 1) / kAlignment * kAlignment) {
    thread_local Kept kept;
    if (kept.size < size_) {
      kept = Kept{};  // give back before asking for more
      kept.memory.reset(std::aligned_alloc(kAlignment, size_));
      if (!kept.memory) throw std::bad_alloc();
      kept.size = size_;
    }
    data_ = static_cast<unsigned char*>(kept.memory.get());
    if (poison) std::fill_n(reinterpret_cast<float*>(data_), size_ / sizeof(float), std::nanf(""));
  }

  template <class T>
  T* take(int64_t n) {
    unsigned char* start = data_ + used_;
    used_ += (n * static_cast<int64_t>(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
    if (used_ > size_) throw std::logic_error("Row::scratch counts too little");
    return reinterpret_cast<T*>(start);
  }

 private:
  struct Kept {
    std::unique_ptr<void, Free> memory;
    int64_t size = 0;
  };

  unsigned char* data_;
  int64_t size_, used_ = 0;
};

// Memory for float32 sums.
class Sums {
 public:
  // Room for so many floats, whatever they are.
  void make_room(int64_t floats) {
    if (data_ && floats <= size_) return;
    data_.reset();
    data_.reset(static_cast<float*>(std::malloc(std::max<int64_t>(floats, 1) * sizeof(float))));
    if (!data_) throw std::bad_alloc();
    size_ = floats;
  }

  // Room for so many floats, all 0.
  void reset(int64_t floats) {
    if (data_ && floats == size_) {
      std::memset(data_.get(), 0, floats * sizeof(float));
      return;
    }
    data_.reset();
    data_.reset(static_cast<float*>(std::calloc(std::max<int64_t>(floats, 1), sizeof(float))));
    if (!data_) throw std::bad_alloc();
    size_ = floats;
  }
  float* get() const { return data_.get(); }

 private:
  std::unique_ptr<float, Free> data_;
  int64_t size_ = 0;
};

constexpr int64_t kHugePage = 2 << 20;           // bytes
constexpr int64_t kOwnMapping = 32 << 20;        // from so many bytes on the C library maps every block afresh

// A long result lies in pages that the system has yet to make, on the first touch of each: a quarter of the time of a
// long forward pass. Larger pages are made with fewer interruptions. It is a wish; what the system answers is the same to us.
inline void wish_for_huge_pages([[maybe_unused]] void* memory, [[maybe_unused]] int64_t bytes) {
#ifdef __linux__
  if (!memory || bytes < kOwnMapping) return;
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage, past = (begin + bytes) / kHugePage * kHugePage;
  if (first < past) madvise(reinterpret_cast<void*>(first), past - first, MADV_HUGEPAGE);
#endif
}

constexpr int64_t kSumsBytes = 2 << 20;  // float32 copies of half-precision results held at a time, about

// How many heads are worked on at a time, when each needs `bytes` of float32 sums (0: none).
inline int64_t heads_at_a_time(int64_t heads, int64_t bytes, int64_t least) {
  if (!bytes) return heads;
  return std::clamp<int64_t>(kSumsBytes / bytes, std::min(least, heads), heads);
}

}  // namespace

// Philox 4x32-10 (Salmon et al. 2011, Parallel Random Numbers: As Easy as 1, 2, 3): what dropout drops.
//
// The words of a pair are a function of where it stands, so it is dropped or kept wherever, whenever and by whomever it
// is computed (kernels/terms/philox.py says it in PyTorch).

#pragma once

#include <cstdint>

#include "interface.hpp"
#include "vectors.hpp"

namespace {

typedef uint64_t Wide __attribute__((vector_size(kLanes * 4)));  // kLanes / 2 words; what is above 32 bits is noise

// Lower halves multiplied to whole words.
inline Wide multiply_words(Wide a, uint32_t b) {
#if defined(__AVX512F__)
  return (Wide)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(b));
#elif defined(__AVX2__)
  return (Wide)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(b));
#else
  return (a & 0xffffffff) * b;
#endif
}

struct Counter {
  Wide words[4];
};

inline Counter philox(Counter counter, uint64_t key) {
  uint32_t low = static_cast<uint32_t>(key), high = static_cast<uint32_t>(key >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round, low += 0x9E3779B9, high += 0xBB67AE85) {
    const Wide* c = counter.words;
    const Wide a = multiply_words(c[0], 0xD2511F53), b = multiply_words(c[2], 0xCD9E8D57);
    counter = {{(b >> 32) ^ c[1] ^ low, b, (a >> 32) ^ c[3] ^ high, a}};
  }
  return counter;
}

// Which of kLanes queries keep each of four keys: those 4 * key_group, ... in the sequence.
class Kept {
 public:
  Kept(const Terms& terms, int64_t batch, int64_t head)
      : seed_(terms.seed), last_(static_cast<uint32_t>(terms.dropped_below - 1)), batch_(batch), head_(head) {}

  // The positions of the queries from now on.
  void begin(Integers queries) {
    even_ = reinterpret_cast<Wide>(queries);
    odd_ = even_ >> 32;
    key_group_ = -1;
  }

  // One bit per query: whether it keeps the key at that position.
  uint32_t operator()(int64_t key) {
    if (key / 4 != key_group_) draw(key / 4);
    return bits_[key % 4];
  }

 private:
  void draw(int64_t key_group) {
    key_group_ = key_group;
    const Wide none = {};
    const auto words = [&](Wide queries) {
      return philox({{queries, none + static_cast<uint32_t>(key_group), none + static_cast<uint32_t>(head_),
                      none + static_cast<uint32_t>(batch_)}}, seed_);
    };
    const Counter even = words(even_), odd = words(odd_);
    typedef uint32_t Unsigned __attribute__((vector_size(kLanes * 4)));
    for (int i = 0; i < 4; ++i) {
      const Wide both = (even.words[i] & 0xffffffff) | odd.words[i] << 32;
      bits_[i] = bits_of(reinterpret_cast<Integers>(reinterpret_cast<Unsigned>(both) > Unsigned{} + last_));
    }
  }

  const uint64_t seed_;
  const uint32_t last_;
  const int64_t batch_, head_;
  int64_t key_group_ = -1;
  Wide even_ = {}, odd_ = {};
  uint32_t bits_[4] = {};
};

}  // namespace

// How tokens become the units of products: packed as rows, transposed, or paired.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "memory.hpp"
#include "products.hpp"
#include "vectors.hpp"

namespace {

inline int padded(int64_t n) { return static_cast<int>((n + kLanes - 1) / kLanes * kLanes); }

// Whether tokens follow one another, as those of a document do: then they are read where they lie.
inline bool is_stretch(const int32_t* index, int count) {
  if (index[count - 1] - index[0] != count - 1) return false;
  int32_t differs = 0;
  for (int i = 0; i < count; ++i) differs |= index[i] ^ (index[0] + i);
  return differs == 0;
}

// A few tokens of one head, at the places of a pass's order.
template <class Element>
struct Tokens {
  const Element* data;
  int64_t token, feature;
  const int32_t* index;  // null: natural order
  int64_t first;
  int count, dim;

  const Element* row(int i) const { return data + (index ? index[first + i] : first + i) * token; }
};

// Float tiles: rows [tokens][padded(dim)] serve as A (units along features) and as B (units along tokens).
struct FloatTiles {
  using Units = FloatUnits;
  static constexpr bool kPairs = false;

  static int units(int64_t n) { return static_cast<int>(n); }
  static int row_width(int64_t dim) { return padded(dim); }
};

struct Float32 : FloatTiles {
  using Element = float;
  static constexpr bool kInPlace = true;

  static float widen(float x) { return x; }
};

// bfloat16 without native products: widened to float tiles when packed.
struct WidenedBFloat16 : FloatTiles {
  using Element = uint16_t;
  static constexpr bool kInPlace = false;

  static float widen(uint16_t x) { return bfloat16_to_float(x); }
};

#ifdef __AVX512BF16__
// bfloat16 with native products: A has pairs along features, B pairs along tokens, so they are packed apart.
struct NativeBFloat16 {
  using Element = uint16_t;
  using Units = BFloat16Pairs;
  static constexpr bool kPairs = true, kInPlace = true;

  static int units(int64_t n) { return static_cast<int>((n + 1) / 2); }
  static int row_width(int64_t dim) { return units(dim); }
  static float widen(uint16_t x) { return bfloat16_to_float(x); }
};

using BFloat16 = NativeBFloat16;

// Pairs along the row: to[j] = (from[2 j], from[2 j + 1]), n a multiple of 2 * kLanes or equal to kLanes.
inline void narrow_row(const float* from, int n, float* to) {
  if (n == kLanes) {
    __m256bh x = _mm512_cvtneps_pbh((__m512)load(from));
    std::memcpy(to, &x, sizeof(x));
    return;
  }
  for (int j = 0; j < n; j += 2 * kLanes) {
    __m512bh x = _mm512_cvtne2ps_pbh((__m512)load(from + j + kLanes), (__m512)load(from + j));
    store(to + j / 2, (Vector)x);
  }
}

// Which numbers make pairs: of the two halves of one vector, and of the first halves of two.
typedef uint16_t Words __attribute__((vector_size(64)));
constexpr Words kPairsOfHalves = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                  8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
constexpr Words kFirstPairs = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                               8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};

// Two rows of numbers as one row of pairs, (even[j], odd[j]).
inline Vector paired(Vector even, Vector odd) {
  const __m512bh halves = _mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
  return (Vector)_mm512_permutexvar_epi16((__m512i)kPairsOfHalves, (__m512i)halves);
}

// to[j] = (even[j], odd[j]). `to` may be `even`.
inline void narrow_pair(const float* even, const float* odd, int n, float* to) {
  for (int j = 0; j < n; j += kLanes) store(to + j, paired(load(even + j), load(odd + j)));
}
#else
using BFloat16 = WidenedBFloat16;
#endif

// Tokens as rows of units along the features, [count][width]; what pads the features is 0.
template <class Kind>
void pack_rows(const Tokens<typename Kind::Element>& tokens, float* to, int width) {
  using Element = typename Kind::Element;
  for (int i = 0; i < tokens.count; ++i, to += width) {
    const Element* from = tokens.row(i);
    if constexpr (Kind::kPairs) {
      Element* pairs = reinterpret_cast<Element*>(to);
      if (tokens.feature == 1)
        std::memcpy(pairs, from, tokens.dim * sizeof(Element));
      else
        for (int d = 0; d < tokens.dim; ++d) pairs[d] = from[d * tokens.feature];
      for (int d = tokens.dim; d < 2 * width; ++d) pairs[d] = 0;
    } else {
      if (tokens.feature == 1)
        for (int d = 0; d < tokens.dim; ++d) to[d] = Kind::widen(from[d]);
      else
        for (int d = 0; d < tokens.dim; ++d) to[d] = Kind::widen(from[d * tokens.feature]);
      for (int d = tokens.dim; d < width; ++d) to[d] = 0;
    }
  }
}

// Rows of units along the features: where the tokens lie if they lie evenly and nothing has to be padded, else packed.
template <class Kind>
Matrix rows_of(const Tokens<typename Kind::Element>& tokens, bool in_place, float* to, int width) {
  constexpr int kPerUnit = sizeof(float) / sizeof(typename Kind::Element);
  if (in_place && Kind::kInPlace && !tokens.index && tokens.feature == 1 && tokens.token % kPerUnit == 0 &&
      tokens.dim == width * kPerUnit)
    return {reinterpret_cast<const float*>(tokens.row(0)), tokens.token / kPerUnit, 1};
  pack_rows<Kind>(tokens, to, width);
  return {to, width, 1};
}

// Rows of pairs along the features as pairs along the tokens, [ceil(count / 2)][width], for native bfloat16.
inline void pair_tokens(const Matrix& rows, int count, int dim, float* to, int width) {
  for (int i = 0; i < count; i += 2, to += width) {
    const uint16_t* even = reinterpret_cast<const uint16_t*>(rows.data + i * rows.row);
    const uint16_t* odd = i + 1 < count ? even + 2 * rows.row : nullptr;
    uint32_t* pairs = reinterpret_cast<uint32_t*>(to);
    int d = 0;
#ifdef __AVX512BF16__
    for (; d + 2 * kLanes <= dim; d += 2 * kLanes) {
      const __m512i low = _mm512_loadu_si512(even + d), high = odd ? _mm512_loadu_si512(odd + d) : __m512i{};
      _mm512_storeu_si512(pairs + d, _mm512_permutex2var_epi16(low, (__m512i)kFirstPairs, high));
      _mm512_storeu_si512(pairs + d + kLanes, _mm512_permutex2var_epi16(low, (__m512i)(kFirstPairs + 16), high));
    }
#endif
    for (; d < dim; ++d) pairs[d] = even[d] | static_cast<uint32_t>(odd ? odd[d] : 0) << 16;
    for (; d < width; ++d) pairs[d] = 0;
  }
}

#ifdef __AVX512F__
constexpr int kBlock = 16;  // rows, and columns, that are transposed at a time

// [16][16] -> [16][16]: within quarters of vectors first, then whole quarters change places.
inline void transpose_block(const float* from, int64_t from_row, float* to, int64_t to_row) {
  __m512 quarters[4][4];  // of rows 4 i to 4 i + 3, at [i][e]: columns e, 4 + e, 8 + e and 12 + e, a quarter each
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const float* at = from + 4 * i * from_row;
    const __m512 a = _mm512_loadu_ps(at), b = _mm512_loadu_ps(at + from_row), c = _mm512_loadu_ps(at + 2 * from_row),
                 d = _mm512_loadu_ps(at + 3 * from_row);
    const __m512d ab = (__m512d)_mm512_unpacklo_ps(a, b), ab2 = (__m512d)_mm512_unpackhi_ps(a, b),
                  cd = (__m512d)_mm512_unpacklo_ps(c, d), cd2 = (__m512d)_mm512_unpackhi_ps(c, d);
    quarters[i][0] = (__m512)_mm512_unpacklo_pd(ab, cd);
    quarters[i][1] = (__m512)_mm512_unpackhi_pd(ab, cd);
    quarters[i][2] = (__m512)_mm512_unpacklo_pd(ab2, cd2);
    quarters[i][3] = (__m512)_mm512_unpackhi_pd(ab2, cd2);
  }
#pragma GCC unroll 4
  for (int e = 0; e < 4; ++e) {
    const __m512 even = _mm512_shuffle_f32x4(quarters[0][e], quarters[1][e], 0x88),
                 odd = _mm512_shuffle_f32x4(quarters[0][e], quarters[1][e], 0xdd),
                 even2 = _mm512_shuffle_f32x4(quarters[2][e], quarters[3][e], 0x88),
                 odd2 = _mm512_shuffle_f32x4(quarters[2][e], quarters[3][e], 0xdd);
    _mm512_storeu_ps(to + e * to_row, _mm512_shuffle_f32x4(even, even2, 0x88));
    _mm512_storeu_ps(to + (8 + e) * to_row, _mm512_shuffle_f32x4(even, even2, 0xdd));
    _mm512_storeu_ps(to + (4 + e) * to_row, _mm512_shuffle_f32x4(odd, odd2, 0x88));
    _mm512_storeu_ps(to + (12 + e) * to_row, _mm512_shuffle_f32x4(odd, odd2, 0xdd));
  }
}
#else
constexpr int kBlock = 4;

inline void transpose_block(const float* from, int64_t from_row, float* to, int64_t to_row) {
  typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));
  const auto row = [&](int i) { return *reinterpret_cast<const Four*>(from + i * from_row); };
  const Four a = row(0), b = row(1), c = row(2), d = row(3);
  const Four ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab2 = __builtin_shufflevector(a, b, 2, 6, 3, 7),
             cd = __builtin_shufflevector(c, d, 0, 4, 1, 5), cd2 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  *reinterpret_cast<Four*>(to) = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
  *reinterpret_cast<Four*>(to + to_row) = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
  *reinterpret_cast<Four*>(to + 2 * to_row) = __builtin_shufflevector(ab2, cd2, 0, 1, 4, 5);
  *reinterpret_cast<Four*>(to + 3 * to_row) = __builtin_shufflevector(ab2, cd2, 2, 3, 6, 7);
}
#endif

// A block at an edge: `rows` x `units` of it are there; what the other rows become is 0.
inline void transpose_edge(const float* from, int64_t from_row, int rows, int units, float* to, int64_t to_row) {
  alignas(kAlignment) float whole[kBlock * kBlock], turned[kBlock * kBlock];
  std::memset(whole, 0, sizeof(whole));
  for (int i = 0; i < rows; ++i) std::memcpy(whole + i * kBlock, from + i * from_row, units * sizeof(float));
  transpose_block(whole, kBlock, turned, kBlock);
  for (int u = 0; u < units; ++u) std::memcpy(to + u * to_row, turned + u * kBlock, sizeof(float) * kBlock);
}

// [count][width] -> [units][tile] of units; columns beyond count are 0. `tile` is a multiple of 16.
inline void transpose(const float* from, int64_t width, int count, int units, float* to, int64_t tile) {
  for (int i = 0; i < tile; i += kBlock)
    for (int u = 0; u < units; u += kBlock) {
      const float* at = from + i * width + u;
      const int rows = std::clamp(count - i, 0, kBlock), here = std::min(units - u, kBlock);
      if (rows == kBlock && here == kBlock)
        transpose_block(at, width, to + u * tile + i, tile);
      else
        transpose_edge(at, width, rows, here, to + u * tile + i, tile);
    }
}

}  // namespace

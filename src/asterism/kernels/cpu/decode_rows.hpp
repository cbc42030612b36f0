// The inner loops of decoding: a few queries against keys and values that are read where they lie.
//
// `list` holds the slots that are read, and no other is touched. Numbers of tokens are counted from `tokens.data`.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "vectors.hpp"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace {

constexpr int kRowsTogether = 4;  // queries that share a load of a key or value
constexpr int kAhead = 4096;      // bytes of keys or values that are asked for before they are read

// Tokens of one head, by slot; their features are next to each other.
template <class Element>
struct Slotted {
  const Element* data;
  int64_t stride;
  int dim;
  const Element* at(int32_t slot) const { return data + slot * stride; }
  int ahead() const { return std::clamp(kAhead / (std::max(dim, 1) * static_cast<int>(sizeof(Element))), 1, 64); }
};

// The first n < kLanes numbers, and zeros: what lies behind them may not be there.
inline Vector load_part(const float* from, int n) {
#if defined(__AVX512F__)
  return (Vector)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), from);
#else
  float part[kLanes] = {};
  std::memcpy(part, from, n * sizeof(float));
  return load(part);
#endif
}
inline Vector load_part(const uint16_t* from, int n) {
  uint16_t part[kLanes] = {};
  std::memcpy(part, from, n * sizeof(uint16_t));
  return load_floats(part);
}

// Lane i is the sum of the lanes of x[i].
inline Vector sums_of(const Vector* x) {
#if defined(__AVX512F__)
  __m512 quads[4];  // each of its quarters: a part of the sums of four vectors
  for (int i = 0; i < 4; ++i) {
    const __m512 a = (__m512)x[4 * i], b = (__m512)x[4 * i + 1], c = (__m512)x[4 * i + 2], d = (__m512)x[4 * i + 3];
    const __m512d ab = (__m512d)(_mm512_unpacklo_ps(a, b) + _mm512_unpackhi_ps(a, b));
    const __m512d cd = (__m512d)(_mm512_unpacklo_ps(c, d) + _mm512_unpackhi_ps(c, d));
    quads[i] = (__m512)_mm512_unpacklo_pd(ab, cd) + (__m512)_mm512_unpackhi_pd(ab, cd);
  }
  const __m512 low = _mm512_shuffle_f32x4(quads[0], quads[1], 0x44) + _mm512_shuffle_f32x4(quads[0], quads[1], 0xee);
  const __m512 high = _mm512_shuffle_f32x4(quads[2], quads[3], 0x44) + _mm512_shuffle_f32x4(quads[2], quads[3], 0xee);
  return (Vector)(_mm512_shuffle_f32x4(low, high, 0x88) + _mm512_shuffle_f32x4(low, high, 0xdd));
#elif defined(__AVX2__)
  __m256 quads[2];
  for (int i = 0; i < 2; ++i) {
    const __m256 a = (__m256)x[4 * i], b = (__m256)x[4 * i + 1], c = (__m256)x[4 * i + 2], d = (__m256)x[4 * i + 3];
    quads[i] = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  }
  return (Vector)(_mm256_permute2f128_ps(quads[0], quads[1], 0x20) + _mm256_permute2f128_ps(quads[0], quads[1], 0x31));
#else
  Vector sums;
  for (int i = 0; i < kLanes; ++i) sums[i] = (x[i][0] + x[i][1]) + (x[i][2] + x[i][3]);
  return sums;
#endif
}

// Asks for a token: what the processor guesses by itself is too little, and stops at each page.
template <class Element>
inline void prefetch(const Slotted<Element>& tokens, int32_t slot) {
  const char* from = reinterpret_cast<const char*>(tokens.at(slot));
  const int bytes = tokens.dim * static_cast<int>(sizeof(Element));
  for (int i = 0; i < bytes; i += 64) __builtin_prefetch(from + i);
}

// scores[r * step + j] = q[r] . key of list[j] for `rows` queries, q_width apart and zero behind their features; of
// these there are `vectors` whole vectors, or any number if that is 0.
template <int rows, int vectors, class Element>
void score_whole(const float* q, int64_t q_width, const Slotted<Element>& keys, const int32_t* list, int n,
                 float* scores, int64_t step) {
  constexpr int together = kLanes / rows;
  const int ahead = keys.ahead(), whole = vectors ? vectors * kLanes : keys.dim / kLanes * kLanes;
  for (int j = 0; j < n; j += together) {
    Vector sums[kLanes] = {};
    // One key after the other: addresses of many would not find room in registers.
    for (int i = 0; i < together; ++i) {
      const Element* key = keys.at(list[std::min(j + i, n - 1)]);
      prefetch(keys, list[std::min(j + i + ahead, n - 1)]);
      for (int d = 0; d < whole; d += kLanes) {
        const Vector x = load_floats(key + d);
        for (int r = 0; r < rows; ++r) sums[r * together + i] += x * load(q + r * q_width + d);
      }
      if (!vectors && whole < keys.dim) {
        const Vector x = load_part(key + whole, keys.dim - whole);
        for (int r = 0; r < rows; ++r) sums[r * together + i] += x * load(q + r * q_width + whole);
      }
    }
    float found[kLanes];
    store(found, sums_of(sums));
    for (int r = 0; r < rows; ++r) std::memcpy(scores + r * step + j, found + r * together, together * sizeof(float));
  }
}

template <int rows, class Element>
void score(const float* q, int64_t q_width, const Slotted<Element>& keys, const int32_t* list, int n, float* scores,
           int64_t step) {
  if (keys.dim == 64)
    score_whole<rows, 64 / kLanes>(q, q_width, keys, list, n, scores, step);
  else if (keys.dim == 128)
    score_whole<rows, 128 / kLanes>(q, q_width, keys, list, n, scores, step);
  else
    score_whole<rows, 0>(q, q_width, keys, list, n, scores, step);
}

// sums[r][d ... ] += sum over j of weights[r * step + j] * value of list[j], for `columns` vectors of features from d
// on; with is_part for the last, incomplete one.
template <int rows, int columns, bool is_part, class Element>
void add_columns(const float* weights, int64_t step, const Slotted<Element>& values, int d, const int32_t* list, int n,
                 float* sums, int64_t width) {
  const int ahead = values.ahead();
  Vector sum[rows][columns];
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < columns; ++c) sum[r][c] = load(sums + r * width + d + c * kLanes);
  for (int j = 0; j < n; ++j) {
    const Element* value = values.at(list[j]) + d;
    prefetch(values, list[std::min(j + ahead, n - 1)]);
    Vector x[columns];
    for (int c = 0; c < columns; ++c)
      x[c] = is_part ? load_part(value, values.dim - d) : load_floats(value + c * kLanes);
    for (int r = 0; r < rows; ++r) {
      const Vector weight = broadcast(weights + r * step + j);
      for (int c = 0; c < columns; ++c) sum[r][c] += weight * x[c];
    }
  }
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < columns; ++c) store(sums + r * width + d + c * kLanes, sum[r][c]);
}

// The same for all features from d on.
template <int rows, int columns, class Element>
void add_values(const float* weights, int64_t step, const Slotted<Element>& values, int d, const int32_t* list, int n,
                float* sums, int64_t width) {
  for (; d + columns * kLanes <= values.dim; d += columns * kLanes)
    add_columns<rows, columns, false>(weights, step, values, d, list, n, sums, width);
  if (d >= values.dim) return;
  if constexpr (columns > 1)
    add_values<rows, columns / 2>(weights, step, values, d, list, n, sums, width);
  else
    add_columns<rows, 1, true>(weights, step, values, d, list, n, sums, width);
}

template <int rows, class Element>
void add_values(const float* weights, int64_t step, const Slotted<Element>& values, const int32_t* list, int n,
                float* sums, int64_t width) {
  constexpr int accumulators = kLanes == 16 ? 16 : 8;
  add_values<rows, std::min(8, accumulators / rows)>(weights, step, values, 0, list, n, sums, width);
}

// One bit for each of n <= 64 slots: whether its byte, `stride` from the last one, is not 0.
inline uint64_t bits_of(const uint8_t* bytes, int64_t stride, int n) {
  uint64_t bits = 0;
  int i = 0;
#if defined(__SSE2__)
  if (stride == 1)
    for (; i + 16 <= n; i += 16) {
      const __m128i found = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + i));
      const uint32_t zeros = _mm_movemask_epi8(_mm_cmpeq_epi8(found, _mm_setzero_si128()));
      bits |= static_cast<uint64_t>(~zeros & 0xffff) << i;
    }
#endif
  for (; i < n; ++i) bits |= static_cast<uint64_t>(bytes[i * stride] != 0) << i;
  return bits;
}

// Writes the slots `first` + i of the bits i that are set; returns how many.
inline int list_of(uint64_t bits, int32_t first, int32_t* list) {
  int n = 0;
  if (bits == ~uint64_t{0}) {
    for (; n < 64; ++n) list[n] = first + n;
    return n;
  }
  for (; bits; bits &= bits - 1) list[n++] = first + __builtin_ctzll(bits);
  return n;
}

}  // namespace

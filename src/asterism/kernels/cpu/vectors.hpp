// Vectors of the machine's width: loads and stores that copy bits, the exponential, and bfloat16.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16, kColumns = 4, kAccumulators = 24;
#elif defined(__AVX2__)
constexpr int kLanes = 8, kColumns = 2, kAccumulators = 12;
#else
constexpr int kLanes = 4, kColumns = 4, kAccumulators = 24;
#endif

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

typedef float Vector __attribute__((vector_size(kLanes * 4)));
typedef int32_t Integers __attribute__((vector_size(kLanes * 4)));
typedef float Unaligned __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

// What these touch may be floats or other units of 32 bits: they move bits (`may_alias`, memcpy).
inline Vector load(const float* from) { return *reinterpret_cast<const Unaligned*>(from); }
inline void store(float* to, Vector x) { *reinterpret_cast<Unaligned*>(to) = x; }

inline void copy_unit(const float* from, float* to) { std::memcpy(to, from, 4); }

// All lanes hold the four bytes at `from`. Integers, because the bytes may be two bfloat16: an addition of floats would
// take such a pair for a denormal number and flush it to 0 where the process asks for that, or quieten a "NaN".
inline Vector broadcast(const float* from) {
  int32_t bits;
  std::memcpy(&bits, from, 4);
  return reinterpret_cast<Vector>(Integers{} + bits);
}
inline Vector splat(float x) { return broadcast(&x); }
inline Vector larger(Vector a, Vector b) { return a > b ? a : b; }

// 2^x to about one unit in the last place for x <= 1; 0 for -infinity, NaN for NaN.
inline Vector exp2(Vector x) {
  const Vector magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vector floor = splat(-150.0f);
  Vector clamped = x < floor ? floor : x;
  Vector shifted = clamped + magic, whole = shifted - magic, f = clamped - whole;
  Vector p = splat(1.535336188319500e-4f);
  p = p * f + 1.339887440266574e-3f;
  p = p * f + 9.618437357674640e-3f;
  p = p * f + 5.550332471162809e-2f;
  p = p * f + 2.402264791363012e-1f;
  p = p * f + 6.931472028550421e-1f;
  p = p * f + 1.0f;
  Integers exponent = __builtin_convertvector(whole, Integers);
  const Integers least = Integers{} - 126;
  Integers held = exponent < least ? least : exponent;
  Vector power = reinterpret_cast<Vector>((held + 127) << 23);
  Vector result = p * power;
  return x < splat(-126.0f) ? Vector{} : result;
}

inline float bfloat16_to_float(uint16_t x) {
  uint32_t bits = static_cast<uint32_t>(x) << 16;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}

inline uint16_t float_to_bfloat16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if (x != x) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline void round_to_bfloat16(const float* from, int64_t n, uint16_t* to) {
  int64_t i = 0;
#ifdef __AVX512BF16__
  for (; i + kLanes <= n; i += kLanes) {
    __m256bh x = _mm512_cvtneps_pbh((__m512)load(from + i));
    std::memcpy(to + i, &x, sizeof(x));
  }
#endif
  for (; i < n; ++i) to[i] = float_to_bfloat16(from[i]);
}

}  // namespace

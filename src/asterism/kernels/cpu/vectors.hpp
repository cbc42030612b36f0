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

// The larger of each lane, b where one of them is NaN.
inline Vector larger(Vector a, Vector b) {
#if defined(__AVX512F__)
  return (Vector)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (Vector)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}

// -infinity in place of the lanes whose bits are 0.
inline Vector forbid(Vector x, uint32_t bits) {
#if defined(__AVX512F__)
  return (Vector)_mm512_mask_blend_ps(static_cast<__mmask16>(bits), (__m512)splat(-kInfinity), (__m512)x);
#else
  Integers lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = 1 << i;
  return ((Integers{} + static_cast<int32_t>(bits)) & lane) != 0 ? x : splat(-kInfinity);
#endif
}

// 2^f for -0.5 <= f <= 0.5.
inline Vector exp2_of_fraction(Vector f) {
  Vector p = splat(1.535336188319500e-4f);
  p = p * f + 1.339887440266574e-3f;
  p = p * f + 9.618437357674640e-3f;
  p = p * f + 5.550332471162809e-2f;
  p = p * f + 2.402264791363012e-1f;
  p = p * f + 6.931472028550421e-1f;
  return p * f + 1.0f;
}

// 2^x to about one unit in the last place for x <= 1; 0 for -infinity, NaN for NaN.
inline Vector exp2(Vector x) {
#if defined(__AVX512F__)
  const Vector nearest = (Vector)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __mmask16 is_normal = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);  // NaN is one
  return (Vector)_mm512_maskz_scalef_ps(is_normal, (__m512)exp2_of_fraction(x - nearest), (__m512)nearest);
#else
  // 1.5 * 2^23: adding it rounds to an integer, which then stands in the lowest bits, here with the bias of exponents.
  const Vector magic = splat(12582912.0f + 127.0f);
  const Vector shifted = x + magic, nearest = shifted - magic;
  const Vector power = reinterpret_cast<Vector>(reinterpret_cast<Integers>(shifted) << 23);
  const Vector result = exp2_of_fraction(x - nearest) * power;
  return x < splat(-126.0f) ? Vector{} : result;
#endif
}

// x in lanes whose bits are 1, 0 in the others.
inline Vector keep(Vector x, uint32_t bits) {
#if defined(__AVX512F__)
  return (Vector)_mm512_maskz_mov_ps(static_cast<__mmask16>(bits), (__m512)x);
#else
  Integers lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = 1 << i;
  return ((Integers{} + static_cast<int32_t>(bits)) & lane) != 0 ? x : Vector{};
#endif
}

// The highest of n numbers, a multiple of kLanes.
inline float highest_of(const float* row, int n) {
  Vector most = load(row);
  for (int j = kLanes; j < n; j += kLanes) most = larger(load(row + j), most);
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)most);
#else
  float found = most[0];
  for (int lane = 1; lane < kLanes; ++lane) found = most[lane] > found ? most[lane] : found;
  return found;
#endif
}

inline float sum_of(Vector x) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)x);
#else
  float sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += x[lane];
  return sum;
#endif
}

// One bit per lane of the result of a comparison.
inline uint32_t bits_of(Integers lanes) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)lanes, (__m512i)lanes);
#elif defined(__AVX2__)
  return static_cast<uint32_t>(_mm256_movemask_ps((__m256)lanes));
#else
  uint32_t bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= (lanes[i] & 1u) << i;
  return bits;
#endif
}

// The numbers `steps` after `from`.
inline Vector gather(const float* from, Integers steps) {
#if defined(__AVX512F__)
  return (Vector)_mm512_i32gather_ps((__m512i)steps, from, 4);
#elif defined(__AVX2__)
  return (Vector)_mm256_i32gather_ps(from, (__m256i)steps, 4);
#else
  Vector x;
  for (int i = 0; i < kLanes; ++i) x[i] = from[steps[i]];
  return x;
#endif
}

// All lanes one place up; into the lowest comes the highest of `from`.
inline Vector shift_in(Vector x, Vector from) {
#if defined(__AVX512F__)
  return (Vector)_mm512_alignr_epi32((__m512i)x, (__m512i)from, kLanes - 1);
#elif defined(__AVX2__)
  return __builtin_shufflevector(from, x, 7, 8, 9, 10, 11, 12, 13, 14);
#else
  return __builtin_shufflevector(from, x, 3, 4, 5, 6);
#endif
}

// About two units in the last place of tanh(x), NaN for NaN. Small numbers, as most scores are beside a cap, need no
// exponential. What a lane becomes depends on that lane alone: no query sees what stands beside it.
inline Vector tanh(Vector x) {
  constexpr float kSmall = 0.6f;
  const Vector square = x * x;
  Vector p = splat(-5.895156413316727e-3f);
  p = p * square + 2.0795971155166626e-2f;
  p = p * square - 5.3783830255270004e-2f;
  p = p * square + 1.3331924378871918e-1f;
  p = p * square - 3.3333298563957214e-1f;
  const Vector small = p * square * x + x;
  const Integers is_large = square > splat(kSmall * kSmall);
  if (!bits_of(is_large)) return small;
  const Integers sign = reinterpret_cast<Integers>(x) & INT32_MIN;
  const Vector size = reinterpret_cast<Vector>(reinterpret_cast<Integers>(x) ^ sign);
  const Vector power = exp2(size * splat(-2 * kLog2E));
  const Vector large = (splat(1) - power) / (splat(1) + power);
  return is_large ? reinterpret_cast<Vector>(reinterpret_cast<Integers>(large) | sign) : small;
}

inline float bfloat16_to_float(uint16_t x) {
  uint32_t bits = static_cast<uint32_t>(x) << 16;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}

typedef uint16_t Halves __attribute__((vector_size(kLanes * 2)));

inline Vector widened(Halves x) { return reinterpret_cast<Vector>(__builtin_convertvector(x, Integers) << 16); }

// kLanes numbers as floats.
inline Vector load_floats(const float* from) { return load(from); }
inline Vector load_floats(const uint16_t* from) {
  Halves bits;
  std::memcpy(&bits, from, sizeof(bits));
  return widened(bits);
}

inline uint16_t float_to_bfloat16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if (x != x) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// The same of every lane.
inline Halves narrowed(Vector x) {
#ifdef __AVX512BF16__
  return (Halves)_mm512_cvtneps_pbh((__m512)x);
#else
  typedef uint32_t Bits __attribute__((vector_size(kLanes * 4)));
  const Bits bits = reinterpret_cast<Bits>(x), rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return __builtin_convertvector(x == x ? rounded : Bits{} + 0x7fc0, Halves);
#endif
}

inline void round_to_bfloat16(const float* from, int64_t n, uint16_t* to) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Halves halves = narrowed(load(from + i));
    std::memcpy(to + i, &halves, sizeof(halves));
  }
  for (; i < n; ++i) to[i] = float_to_bfloat16(from[i]);
}

}  // namespace

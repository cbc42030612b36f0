// Matrix products: C[m][n] += sum_k A[m][k] * B[k][n] over 32-bit units.
//
// A unit is one float, or, where the machine multiplies bfloat16 natively, a pair of bfloat16 that are neighbours along
// k. B is stored with n contiguous. Units are moved as bits and never touched as floats, because a pair is none.

#pragma once

#include <algorithm>
#include <cstdint>

#include "vectors.hpp"

namespace {

constexpr int kRun = 64;  // units of a product that are summed at a time

struct FloatUnits {
  static Vector multiply_add(Vector sum, Vector a, Vector b) { return sum + a * b; }
};

#ifdef __AVX512BF16__
struct BFloat16Pairs {
  static Vector multiply_add(Vector sum, Vector a, Vector b) {
    return (Vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
  }
};
#endif

struct Matrix {  // element (i, j) at data[i * row + j * column]
  const float* data;
  int64_t row, column;
};

template <class Units, bool kAdd, int kRows, int kVectors>
inline void run_of_units(int n_units, Matrix a, const float* b, int64_t b_row, float* c, int64_t c_row) {
  Vector sum[kRows][kVectors];
#pragma GCC unroll 32
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) sum[m][n] = Vector{};
  const float* left = a.data;
  for (int k = 0; k < n_units; ++k, left += a.column, b += b_row) {
    Vector right[kVectors];
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) right[n] = load(b + n * kLanes);
#pragma GCC unroll 32
    for (int m = 0; m < kRows; ++m) {
      Vector factor = broadcast(left + m * a.row);
#pragma GCC unroll 4
      for (int n = 0; n < kVectors; ++n) sum[m][n] = Units::multiply_add(sum[m][n], factor, right[n]);
    }
  }
#pragma GCC unroll 32
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) {
      float* to = c + m * c_row + n * kLanes;
      store(to, kAdd ? load(to) + sum[m][n] : sum[m][n]);
    }
}

// A sum over many units is the sum of sums over runs of them: rounding errors grow with the length of a run.
template <class Units, bool kAdd, int kRows, int kVectors>
inline void micro_product(int n_units, Matrix a, const float* b, int64_t b_row, float* c, int64_t c_row) {
  const int first = std::min(n_units, kRun);
  run_of_units<Units, kAdd, kRows, kVectors>(first, a, b, b_row, c, c_row);
  for (int done = first; done < n_units; done += kRun) {
    a.data += kRun * a.column;
    b += kRun * b_row;
    run_of_units<Units, true, kRows, kVectors>(std::min(n_units - done, kRun), a, b, b_row, c, c_row);
  }
}

template <class Units, bool kAdd, int kRows, int kVectors>
void row_blocks(int rows, int n_units, Matrix a, const float* b, int64_t b_row, float* c, int64_t c_row) {
  for (; rows >= kRows; rows -= kRows, a.data += kRows * a.row, c += kRows * c_row)
    micro_product<Units, kAdd, kRows, kVectors>(n_units, a, b, b_row, c, c_row);
  if constexpr (kRows > 1) {
    constexpr int kFewer = kRows > 4 ? 4 : kRows / 2;
    if (rows) row_blocks<Units, kAdd, kFewer, kVectors>(rows, n_units, a, b, b_row, c, c_row);
  }
}

// C (+)= A B for A [rows, n_units], B [n_units, columns] and C [rows, columns]; columns is a multiple of kLanes.
template <class Units, bool kAdd>
void product(int rows, int columns, int n_units, Matrix a, const float* b, int64_t b_row, float* c, int64_t c_row) {
  int n = 0;
  for (; n + kColumns * kLanes <= columns; n += kColumns * kLanes)
    row_blocks<Units, kAdd, kAccumulators / kColumns, kColumns>(rows, n_units, a, b + n, b_row, c + n, c_row);
  const int left = (columns - n) / kLanes;
  if constexpr (kColumns > 2) {
    if (left == 3) row_blocks<Units, kAdd, kAccumulators / 3, 3>(rows, n_units, a, b + n, b_row, c + n, c_row);
    if (left == 2) row_blocks<Units, kAdd, kAccumulators / 2, 2>(rows, n_units, a, b + n, b_row, c + n, c_row);
  }
  if (left == 1) row_blocks<Units, kAdd, kAccumulators / 2, 1>(rows, n_units, a, b + n, b_row, c + n, c_row);
}

}  // namespace

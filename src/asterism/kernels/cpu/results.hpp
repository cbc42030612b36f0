// What a forward pass leaves for the next one, and for the backward pass.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "interface.hpp"
#include "vectors.hpp"

namespace {

// The output of one query, `at` among batch * heads * n_queries. In half precision it lies in two numbers: itself, and
// what its rounding took; together they have the digits that a later pass needs.
template <class Kind>
void load_output(const Problem& p, int64_t at, float* to) {
  using Element = typename Kind::Element;
  const Element* out = static_cast<const Element*>(p.out) + at * p.value_dim;
  if constexpr (std::is_same_v<Element, float>) {
    std::memcpy(to, out, p.value_dim * sizeof(float));
  } else {
    const Element* residual = static_cast<const Element*>(p.residual) + at * p.value_dim;
    int64_t d = 0;
    for (; d + kLanes <= p.value_dim; d += kLanes) store(to + d, load_floats(out + d) + load_floats(residual + d));
    for (; d < p.value_dim; ++d) to[d] = Kind::widen(out[d]) + Kind::widen(residual[d]);
  }
}

// Rounds to bfloat16; returns what that takes. Infinity has no remainder.
inline Vector round_off(Vector x, uint16_t* to) {
  const Halves halves = narrowed(x);
  std::memcpy(to, &halves, sizeof(halves));
  const Vector rest = x - widened(halves);
  return rest - rest == Vector{} ? rest : Vector{};
}

inline float round_off(float x, uint16_t* to) {
  *to = float_to_bfloat16(x);
  const float rest = x - bfloat16_to_float(*to);
  return std::isfinite(rest) ? rest : 0;
}

template <class Kind>
void store_output(const Problem& p, int64_t at, const float* whole) {
  using Element = typename Kind::Element;
  Element* out = static_cast<Element*>(p.out) + at * p.value_dim;
  if constexpr (std::is_same_v<Element, float>) {
    std::memcpy(out, whole, p.value_dim * sizeof(float));
  } else {
    Element* residual = static_cast<Element*>(p.residual) + at * p.value_dim;
    int64_t d = 0;
    for (; d + kLanes <= p.value_dim; d += kLanes) round_off(round_off(load(whole + d), out + d), residual + d);
    for (; d < p.value_dim; ++d) round_off(round_off(whole[d], out + d), residual + d);
  }
}

// The output of queries [first, past) that have read nothing.
inline void clear_outputs(const Problem& p, int64_t first, int64_t past) {
  const int64_t bytes = p.is_bfloat16 ? 2 : 4, row = p.value_dim * bytes, n = (past - first) * row;
  std::memset(static_cast<unsigned char*>(p.out) + first * row, 0, n);
  if (p.residual) std::memset(static_cast<unsigned char*>(p.residual) + first * row, 0, n);
  std::fill(p.lse + first, p.lse + past, -kInfinity);
}

}  // namespace

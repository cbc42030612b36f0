// What the gradient of a softmax subtracts for each query: the sum of grad_out * out over the features, minus grad_lse.
//
// Computed once for all passes and in natural order, so that each number of out and grad_out is read once.

#pragma once

#include <cstdint>

#include "parallel.hpp"
#include "tokens.hpp"

namespace {

// The sum of grad * (out + residual) over n features; `residual` may be null.
template <class Kind>
float dot(const typename Kind::Element* grad, int64_t feature, const typename Kind::Element* out,
          const typename Kind::Element* residual, int64_t n) {
  Vector sums = {};
  int64_t d = 0;
  for (; feature == 1 && d + kLanes <= n; d += kLanes) {
    const Vector whole = residual ? load_floats(out + d) + load_floats(residual + d) : load_floats(out + d);
    sums += load_floats(grad + d) * whole;
  }
  float sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += sums[lane];
  for (; d < n; ++d)
    sum += Kind::widen(grad[d * feature]) * (Kind::widen(out[d]) + (residual ? Kind::widen(residual[d]) : 0));
  return sum;
}

// Makes `deltas` [batch * heads, n_queries].
template <class Kind>
void write_deltas(const Problem& p, Team& team, Sums& deltas) {
  using Element = typename Kind::Element;
  deltas.make_room(p.batch * p.heads * p.n_queries);
  team.run_in_chunks(p.batch * p.heads, p.n_queries, p.value_dim, [&](int64_t unit, int64_t first, int64_t past) {
    const Element* grad = static_cast<const Element*>(p.grad_out.data) + unit / p.heads * p.grad_out.batch +
                          unit % p.heads * p.grad_out.head;
    for (int64_t query = first; query < past; ++query) {
      const int64_t at = unit * p.n_queries + query;
      const Element* out = static_cast<const Element*>(p.out) + at * p.value_dim;
      const Element* residual = p.residual ? static_cast<const Element*>(p.residual) + at * p.value_dim : nullptr;
      const float sum = dot<Kind>(grad + query * p.grad_out.token, p.grad_out.feature, out, residual, p.value_dim);
      deltas.get()[at] = sum - p.grad_lse[at];
    }
  });
}

}  // namespace

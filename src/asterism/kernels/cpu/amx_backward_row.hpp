// Backward through one row of tiles with products by AMX. The gradient of the queries is summed transposed.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "amx_row.hpp"
#include "backward_row.hpp"

#ifdef ASTERISM_AMX
namespace {

template <>
class BackwardRow<AmxBFloat16> : public AmxRow {
 public:
  BackwardRow(const Problem& p, const Pass& pass, const float* deltas, const TermTables<AmxBFloat16>&, Scratch& scratch)
      : AmxRow(p, pass, scratch), deltas_(deltas), query_units_(t_ / 2) {
    const int64_t t = t_;
    lse_ = highest_;
    delta_ = total_;
    grad_weights_ = scratch.take<float>(t * kStrip);
    weights_ = scratch.take<float>(t * query_units_);
    grad_scores_ = scratch.take<float>(t * query_units_);
    grad_pairs_ = scratch.take<float>(t * kStrip / 2);
    grad_out_ = scratch.take<float>(t * value_whole_ / 2);
    query_rows_ = scratch.take<float>(query_units_ * whole_);
    grad_out_rows_ = scratch.take<float>(query_units_ * value_whole_);
    value_rows_ = scratch.take<float>(t * value_whole_ / 2);
    key_columns_ = scratch.take<float>(key_units_ * whole_);
    grad_query_ = scratch.take<float>(t * whole_);
    grad_key_ = scratch.take<float>(t * std::max(whole_, value_whole_));
  }

  void begin(int64_t batch, int64_t head, int64_t row, const TermSums&) {
    AmxRow::begin(batch, head, row);
    if (p_.grad_k) keep_as_tokens(row_width_, p_.dim, whole_, query_rows_);
    const auto g = tokens(p_.grad_out, head, pass_.query_index, first_, count_, p_.value_dim);
    pack_rows<AmxBFloat16>(g, rows_, value_row_width_);
    transpose(rows_, value_row_width_, count_, AmxBFloat16::units(p_.value_dim), grad_out_, t_);
    if (p_.grad_v) keep_as_tokens(value_row_width_, p_.value_dim, value_whole_, grad_out_rows_);
    std::fill(lse_, lse_ + t_, kInfinity);
    std::fill(delta_, delta_ + t_, 0.0f);
    for (int i = 0; i < count_; ++i) {
      const int64_t at = (batch * p_.heads + head) * p_.n_queries + query(i);
      if (p_.lse[at] == -kInfinity) continue;
      lse_[i] = p_.lse[at] * kLog2E;
      if (needs_scores()) delta_[i] = deltas_[at] * p_.scale;
    }
    std::fill(grad_query_, grad_query_ + static_cast<int64_t>(t_) * whole_, 0.0f);
  }

  // Adds a tile's share to the gradients that are asked for.
  void read(int64_t column, int32_t kind, const KeySums& sums) {
    const int n_keys = keys_in(column);
    const Allowed may = allowed(column, kind, n_keys);
    if (may.nothing) return;
    find_strips(may, n_keys);
    const auto k = tokens(p_.k, kv_head(), pass_.key_index, column * t_, n_keys, p_.dim);
    const auto v = tokens(p_.v, kv_head(), pass_.key_index, column * t_, n_keys, p_.value_dim);
    const Matrix keys = whole_rows(k, may, keys_, row_width_);
    const Matrix values = needs_scores() ? whole_rows(v, may, value_rows_, value_row_width_) : Matrix{};
    if (p_.grad_q) turn(keys, whole_, key_columns_);
    for (int s = 0; s < n_strips_; ++s) read_strip(may, s, keys, values);
    const auto add = [&](const float* weights, const float* tokens, int whole, int64_t dim, float* to) {
      if (to) add_to_keys(column, weights, tokens, whole, dim, to, sums.is_tile);
    };
    add(weights_, grad_out_rows_, value_whole_, p_.value_dim, sums.values);
    add(grad_scores_, query_rows_, whole_, p_.dim, sums.keys);
  }

  // That of the row's queries.
  Matrix finish() const {
    transpose(grad_query_, t_, static_cast<int>(p_.dim), count_, rows_, width_);
    return {rows_, width_, 1};
  }

 private:
  // Whether gradients of scores are needed: those of the values alone need only the weights.
  bool needs_scores() const { return p_.grad_q || p_.grad_k; }

  // The packed rows as B, units along the tokens; tokens beyond count_ are 0.
  void keep_as_tokens(int row_width, int64_t dim, int whole, float* to) const {
    pair_tokens({rows_, row_width, 1}, count_, static_cast<int>(dim), to, whole);
    std::fill(to + static_cast<int64_t>(count_ + 1) / 2 * whole, to + query_units_ * whole, 0.0f);
  }

  void read_strip(const Allowed& may, int s, const Matrix& keys, const Matrix& values) {
    const Range read = strips_[s];
    clear_unread_strips(s);
    if (read.begin >= read.end) return;
    multiply_strip(s, keys, AmxBFloat16::units(p_.dim), queries_, scores_);
    if (needs_scores()) multiply_strip(s, values, AmxBFloat16::units(p_.value_dim), grad_out_, grad_weights_);
    if (is_whole(may))
      differentiate_softmax<false>(may, s);
    else
      differentiate_softmax<true>(may, s);
    if (!p_.grad_q) return;
    amx_product<true>(whole_, kStrip, (read.end - read.begin) / 2, {key_columns_ + read.begin / 2, key_units_, 1},
                      grad_pairs_ + read.begin / 2 * kStrip, kStrip, grad_query_ + s * kStrip, t_);
  }

  // Weights and gradients of scores of the keys that a strip does not read are 0 for the strips beside it.
  void clear_unread_strips(int s) {
    for (int j = 0; j < whole_keys_; ++j) {
      if (strip_reads(s, j)) continue;
      std::fill_n(weights_ + j * query_units_ + s * kStrip / 2, kStrip / 2, 0.0f);
      std::fill_n(grad_scores_ + j * query_units_ + s * kStrip / 2, kStrip / 2, 0.0f);
    }
  }

  // Scores -> weights, gradients of weights -> gradients of scores, as pairs of queries, of the latter of keys too.
  template <bool kMasked>
  void differentiate_softmax(const Allowed& may, int strip) {
    for (int j = strips_[strip].begin; j < strips_[strip].end; j += 2) {
      const __m512i even = differentiate_row<kMasked>(may, j, strip);
      const __m512i odd = differentiate_row<kMasked>(may, j + 1, strip);
      // Neighbouring rows interleaved: pairs of keys for the first 16 queries, and for the last.
      float* pairs = grad_pairs_ + j / 2 * kStrip;
      _mm512_storeu_si512(pairs, _mm512_permutex2var_epi16(even, (__m512i)kFirstPairs, odd));
      _mm512_storeu_si512(pairs + kGroup, _mm512_permutex2var_epi16(even, (__m512i)(kFirstPairs + kGroup), odd));
    }
  }

  // One key of a strip; returns the gradients of its 32 scores.
  template <bool kMasked>
  __m512i differentiate_row(const Allowed& may, int j, int strip) {
    const __m512 scale = _mm512_set1_ps(scale_), outer = _mm512_set1_ps(p_.scale);
    const uint32_t word = kMasked ? readers(may, j, strip) : ~uint32_t{0};
    __m512 weight[kGroups], grad[kGroups];
#pragma GCC unroll 2
    for (int g = 0; g < kGroups; ++g) {
      const int i = strip * kStrip + g * kGroup, at = j * kStrip + g * kGroup;
      const __mmask16 lanes = static_cast<__mmask16>(word >> g * kGroup);
      const __m512 x = _mm512_fmsub_ps(_mm512_loadu_ps(scores_ + at), scale, _mm512_loadu_ps(lse_ + i));
      const __m512 change = _mm512_fmsub_ps(_mm512_loadu_ps(grad_weights_ + at), outer, _mm512_loadu_ps(delta_ + i));
      weight[g] = exp2_in_lanes(lanes, x);
      grad[g] = _mm512_maskz_mul_ps(lanes, weight[g], change);
    }
    const __m512i grads = (__m512i)_mm512_cvtne2ps_pbh(grad[1], grad[0]);
    const int64_t at = j * query_units_ + strip * kStrip / 2;
    _mm512_storeu_si512(weights_ + at, (__m512i)_mm512_cvtne2ps_pbh(weight[1], weight[0]));
    _mm512_storeu_si512(grad_scores_ + at, grads);
    return grads;
  }

  // Adds the product of a tile's weights, as A, with the tokens of its queries to the tile's keys in `to`.
  void add_to_keys(int64_t column, const float* weights, const float* tokens, int whole, int64_t dim, float* to,
                   bool is_tile) {
    const bool in_place = dim == whole && n_keys_ == whole_keys_ && (is_tile || are_stretch(column, n_keys_));
    float* sums = in_place ? to + (is_tile ? 0 : key(column, 0) * dim) : grad_key_;
    if (!in_place) std::fill(sums, sums + static_cast<int64_t>(whole_keys_) * whole, 0.0f);
    Range readers[kMostGroups / kGroups];  // by strip of keys, the strips of queries that read it
    for (int j = 0; j < whole_keys_; j += kStrip) readers[j / kStrip] = strips_that_read(j);
    for_runs(readers, whole_keys_ / kStrip, [&](int first, int past, Range strips) {
      const int64_t row = first * kStrip, unit = strips.begin * kStrip / 2;
      amx_product<true>((past - first) * kStrip, whole, (strips.end - strips.begin) * kStrip / 2,
                        {weights + row * query_units_ + unit, query_units_, 1}, tokens + unit * whole, whole,
                        sums + row * whole, whole);
    });
    if (in_place) return;
    for (int j = 0; j < n_keys_; ++j) {
      float* row = to + (is_tile ? j : key(column, j)) * dim;
      const float* from = grad_key_ + static_cast<int64_t>(j) * whole;
      for (int64_t d = 0; d < dim; ++d) row[d] += from[d];
    }
  }

  Range strips_that_read(int key) const {
    int first = 0, past = n_strips_;
    while (first < past && !strip_reads(first, key)) ++first;
    while (past > first && !strip_reads(past - 1, key)) --past;
    return {first, past};
  }

  const float* deltas_;  // [batch * heads, n_queries]
  const int64_t query_units_;  // pairs of queries from one key to the next
  float *lse_, *delta_, *grad_weights_, *weights_, *grad_scores_, *grad_pairs_, *grad_out_, *query_rows_,
      *grad_out_rows_, *value_rows_, *key_columns_, *grad_query_, *grad_key_;
};

}  // namespace
#endif

// Forward through one row of tiles with products by AMX. The output is summed transposed, [feature][query].

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "amx_row.hpp"
#include "forward_row.hpp"

#ifdef ASTERISM_AMX
namespace {

template <>
class ForwardRow<AmxBFloat16> : public AmxRow {
 public:
  ForwardRow(const Problem& p, const Pass& pass, const TermTables<AmxBFloat16>&, Scratch& scratch)
      : AmxRow(p, pass, scratch) {
    weights_ = scratch.take<float>(key_units_ * kStrip);
    values_ = scratch.take<float>(key_units_ * value_whole_);
    sums_ = scratch.take<float>(static_cast<int64_t>(t_) * value_whole_);
  }

  // Softmax with nothing read yet.
  void begin(int64_t batch, int64_t head, int64_t row) {
    AmxRow::begin(batch, head, row);
    std::fill(highest_, highest_ + t_, -kInfinity);
    std::fill(total_, total_ + t_, 0.0f);
    std::fill(sums_, sums_ + static_cast<int64_t>(t_) * value_whole_, 0.0f);
  }

  // Softmax continued from the output and log-sum-exp that earlier passes left.
  void resume() {
    load_outputs(rows_, value_width_);
    transpose(rows_, value_width_, count_, static_cast<int>(p_.value_dim), sums_, t_);
  }

  void read(int64_t begin, int64_t end) {
    for (; begin < end; ++begin) read_tile(pass_.columns[begin], pass_.kinds[begin]);
  }

  // Writes the output and log-sum-exp of the queries, or those of a part of the row: [t, value_dim], then [t].
  void finish() { store_outputs(sums_as_rows(), value_width_); }
  void finish_part(float* part) { store_part(sums_as_rows(), value_width_, part); }

 private:
  float* sums_as_rows() const {
    transpose(sums_, t_, static_cast<int>(p_.value_dim), count_, rows_, value_width_);
    return rows_;
  }

  // Growth of the largest score, in powers of two, that the weights bear before everything is scaled down: they are
  // floats and their sum has room, so most steps scale nothing.
  static constexpr float kGrowth = 8;

  void read_tile(int64_t column, int32_t kind) {
    const int n_keys = keys_in(column);
    const Allowed may = allowed(column, kind, n_keys);
    if (may.nothing) return;
    find_strips(may, n_keys);
    const auto k = tokens(p_.k, kv_head(), pass_.key_index, column * t_, n_keys, p_.dim);
    const auto v = tokens(p_.v, kv_head(), pass_.key_index, column * t_, n_keys, p_.value_dim);
    const Matrix keys = whole_rows(k, may, keys_, row_width_);
    turn(whole_rows(v, may, rows_, value_row_width_), value_whole_, values_);
    for (int s = 0; s < n_strips_; ++s) {
      const Range read = strips_[s];
      if (read.begin >= read.end) continue;
      multiply_strip(s, keys, AmxBFloat16::units(p_.dim), queries_, scores_);
      if (is_whole(may))
        weigh<false>(may, s);
      else
        weigh<true>(may, s);
      amx_product<true>(value_whole_, kStrip, (read.end - read.begin) / 2, {values_ + read.begin / 2, key_units_, 1},
                        weights_ + read.begin / 2 * kStrip, kStrip, sums_ + s * kStrip, t_);
    }
  }

  // Scores of a strip -> weights, as pairs of keys; a step of the online softmax.
  template <bool kMasked>
  void weigh(const Allowed& may, int strip) {
    __m512 shift[kGroups], total[2][kGroups];
    find_highest<kMasked>(may, strip, shift);
    for (int g = 0; g < kGroups; ++g) {
      shift[g] = shifted(strip * kStrip + g * kGroup, shift[g]);
      total[0][g] = _mm512_loadu_ps(total_ + strip * kStrip + g * kGroup);
      total[1][g] = _mm512_setzero_ps();
    }
    const __m512 scale = _mm512_set1_ps(scale_);
    for (int j = strips_[strip].begin; j < strips_[strip].end; j += 2) {
      const uint32_t even = kMasked ? readers(may, j, strip) : 0, odd = kMasked ? readers(may, j + 1, strip) : 0;
#pragma GCC unroll 2
      for (int g = 0; g < kGroups; ++g) {
        const float* at = scores_ + j * kStrip + g * kGroup;
        const __m512 x = _mm512_fmsub_ps(_mm512_loadu_ps(at), scale, shift[g]),
                     y = _mm512_fmsub_ps(_mm512_loadu_ps(at + kStrip), scale, shift[g]);
        const __m512 first = exp2_in_lanes(lanes<kMasked>(even, g), x);
        const __m512 second = exp2_in_lanes(lanes<kMasked>(odd, g), y);
        total[0][g] = _mm512_add_ps(total[0][g], first);
        total[1][g] = _mm512_add_ps(total[1][g], second);
        store(weights_ + j / 2 * kStrip + g * kGroup, paired((Vector)first, (Vector)second));
      }
    }
    for (int g = 0; g < kGroups; ++g)
      _mm512_storeu_ps(total_ + strip * kStrip + g * kGroup, _mm512_add_ps(total[0][g], total[1][g]));
  }

  template <bool kMasked>
  static __mmask16 lanes(uint32_t readers, int group) {
    return kMasked ? static_cast<__mmask16>(readers >> group * kGroup) : static_cast<__mmask16>(0xffff);
  }

  // The largest scores of a strip's queries, -infinity where nothing may be read; NaN is passed over.
  template <bool kMasked>
  void find_highest(const Allowed& may, int strip, __m512 (&highest)[kGroups]) const {
    constexpr int kChains = 4;  // comparisons that do not wait for each other
    __m512 best[kChains][kGroups];
    for (auto& chain : best) std::fill(chain, chain + kGroups, _mm512_set1_ps(-kInfinity));
    for (int j = strips_[strip].begin; j < strips_[strip].end; j += kChains)
#pragma GCC unroll 4
      for (int c = 0; c < kChains; ++c) {
        const uint32_t word = kMasked ? readers(may, j + c, strip) : 0;
#pragma GCC unroll 2
        for (int g = 0; g < kGroups; ++g) {
          const __m512 x = _mm512_loadu_ps(scores_ + (j + c) * kStrip + g * kGroup);
          best[c][g] = _mm512_mask_max_ps(best[c][g], lanes<kMasked>(word, g), x, best[c][g]);
        }
      }
    for (int g = 0; g < kGroups; ++g)
      highest[g] = _mm512_max_ps(_mm512_max_ps(best[0][g], best[1][g]), _mm512_max_ps(best[2][g], best[3][g]));
  }

  // What is taken from the scaled scores of 16 queries, given the largest raw ones. Where they have grown too far, what
  // was summed before is scaled down.
  __m512 shifted(int i, __m512 raw) {
    const __m512 nothing = _mm512_set1_ps(-kInfinity), before = _mm512_loadu_ps(highest_ + i);
    const __mmask16 any = _mm512_cmp_ps_mask(raw, nothing, _CMP_NEQ_UQ);
    const __m512 highest = _mm512_mask_mul_ps(nothing, any, raw, _mm512_set1_ps(scale_));
    const __mmask16 grown = _mm512_cmp_ps_mask(highest, _mm512_add_ps(before, _mm512_set1_ps(kGrowth)), _CMP_GT_OQ);
    const __m512 now = _mm512_mask_mov_ps(before, grown, highest);
    const __m512 shift = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(now, nothing, _CMP_NEQ_UQ), now);
    if (!grown) return shift;
    const Vector factor = exp2((Vector)_mm512_sub_ps(before, shift));
    _mm512_storeu_ps(highest_ + i, now);
    store(total_ + i, load(total_ + i) * factor);
    for (int d = 0; d < value_whole_; ++d) store(sums_ + d * t_ + i, load(sums_ + d * t_ + i) * factor);
    return shift;
  }

  float *weights_, *values_, *sums_;
};

}  // namespace
#endif

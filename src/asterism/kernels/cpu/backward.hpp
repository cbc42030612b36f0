// The backward pass over all heads, passes and rows of tiles.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "backward_row.hpp"
#include "batch.hpp"
#include "deltas.hpp"
#include "parallel.hpp"

namespace {

// A thread works on the rows of one key head, or of a part of them, with sums of its own for keys and values, so that
// the order of every addition is fixed.
template <class Kind>
class Backward {
 public:
  Backward(const Problem& p, Team&) : p_(p), batch_(p), group_(p.heads / p.kv_heads) {
    const int64_t heads = p.batch * p.kv_heads, threads = std::max(1, p.threads);
    const int64_t floats = p.n_queries * p.dim + p.n_keys * (p.dim + p.value_dim);
    wave_ = heads_at_a_time(heads, p.is_bfloat16 ? floats * 4 : 0, threads);
    parts_ = wave_ % threads == 0 || wave_ >= 4 * threads ? 1 : wave_ < threads ? (threads + wave_ - 1) / wave_ : 2;
    is_direct_ = !p.is_bfloat16 && parts_ == 1;
  }

  void run() {
    const int64_t heads = p_.batch * p_.kv_heads;
    write_deltas<Kind>(p_, deltas_);
    for (first_ = 0; first_ < heads; first_ += wave_) {
      const int64_t count = std::min(wave_, heads - first_);
      if (is_direct_) {
        in_parallel(p_, count, 0, [&](int64_t i, Scratch&) { clear_key_head(first_ + i); });
      } else {
        grad_k_.reset(count * parts_ * p_.n_keys * p_.dim);
        grad_v_.reset(count * parts_ * p_.n_keys * p_.value_dim);
      }
      for (member_ = 0; member_ < group_; ++member_) run_member(count);
      if (!is_direct_)
        in_parallel(p_, count, 0, [&](int64_t i, Scratch&) {
          collect(grad_k_, i, p_.n_keys * p_.dim, p_.grad_k);
          collect(grad_v_, i, p_.n_keys * p_.value_dim, p_.grad_v);
        });
    }
  }

 private:
  void run_member(int64_t count) {
    const int64_t floats = p_.n_queries * p_.dim;
    if (p_.is_bfloat16)
      grad_q_.reset(count * floats);
    else
      in_parallel(p_, count, 0, [&](int64_t i, Scratch&) {
        std::fill_n(static_cast<float*>(p_.grad_q) + query_head(i) * floats, floats, 0.0f);
      });
    for (int64_t i = 0; i < p_.n_passes; ++i) {
      in_parallel(p_, count * parts_, Row<Kind>::scratch(p_, true), [&](int64_t task, Scratch& scratch) {
        const Pass& pass = batch_.pass(i, query_head(task / parts_) / p_.heads);
        BackwardRow<Kind> row(p_, pass, deltas_.get(), scratch);
        run_rows(pass, task / parts_, task % parts_, row);
      });
    }
    if (!p_.is_bfloat16) return;
    in_parallel(p_, count, 0, [&](int64_t i, Scratch&) {
      uint16_t* to = static_cast<uint16_t*>(p_.grad_q) + query_head(i) * floats;
      const float* from = grad_q_.get() + i * floats;
      round_to_bfloat16(from, floats, to);
    });
  }

  void clear_key_head(int64_t unit) const {
    const int64_t key_floats = p_.n_keys * p_.dim, value_floats = p_.n_keys * p_.value_dim;
    std::fill_n(static_cast<float*>(p_.grad_k) + unit * key_floats, key_floats, 0.0f);
    std::fill_n(static_cast<float*>(p_.grad_v) + unit * value_floats, value_floats, 0.0f);
  }

  int64_t query_head(int64_t i) const { return (first_ + i) * group_ + member_; }  // among batch * heads

  void run_rows(const Pass& pass, int64_t i, int64_t part, BackwardRow<Kind>& row) {
    const int64_t unit = query_head(i), head = unit % p_.heads;
    const int32_t list = pass.list_of_head[head];
    if (list < 0) return;
    const int64_t* offsets = pass.row_offsets + list * (pass.n_rows + 1);
    const int64_t key_floats = p_.n_keys * p_.dim, value_floats = p_.n_keys * p_.value_dim;
    float* grad_q = p_.is_bfloat16 ? grad_q_.get() + i * p_.n_queries * p_.dim
                                   : static_cast<float*>(p_.grad_q) + unit * p_.n_queries * p_.dim;
    float* grad_k = is_direct_ ? static_cast<float*>(p_.grad_k) + (first_ + i) * key_floats
                               : grad_k_.get() + (i * parts_ + part) * key_floats;
    float* grad_v = is_direct_ ? static_cast<float*>(p_.grad_v) + (first_ + i) * value_floats
                               : grad_v_.get() + (i * parts_ + part) * value_floats;
    for (int64_t r = first_row(pass, offsets, part); r < first_row(pass, offsets, part + 1); ++r) {
      if (offsets[r] == offsets[r + 1]) continue;
      row.begin(unit / p_.heads, head, r);
      for (int64_t at = offsets[r]; at < offsets[r + 1]; ++at)
        row.read(pass.columns[at], pass.kinds[at], grad_k, grad_v);
      row.finish(grad_q);
    }
  }

  // Parts are runs of rows with about equally many tiles.
  int64_t first_row(const Pass& pass, const int64_t* offsets, int64_t part) const {
    const int64_t tiles = offsets[pass.n_rows] - offsets[0], wanted = offsets[0] + tiles * part / parts_;
    return std::lower_bound(offsets, offsets + pass.n_rows, wanted) - offsets;
  }

  // The sum over the parts of key head i, in the dtype of the gradients.
  void collect(const Sums& sums, int64_t i, int64_t floats, void* grad) const {
    float* total = sums.get() + i * parts_ * floats;
    for (int64_t part = 1; part < parts_; ++part)
      for (int64_t j = 0; j < floats; ++j) total[j] += total[part * floats + j];
    const int64_t at = (first_ + i) * floats;
    if (p_.is_bfloat16)
      round_to_bfloat16(total, floats, static_cast<uint16_t*>(grad) + at);
    else
      std::memcpy(static_cast<float*>(grad) + at, total, floats * sizeof(float));
  }

  const Problem& p_;
  const Batch batch_;
  const int64_t group_;
  int64_t wave_, parts_, first_ = 0, member_ = 0;
  bool is_direct_;
  Sums deltas_, grad_q_, grad_k_, grad_v_;
};

}  // namespace

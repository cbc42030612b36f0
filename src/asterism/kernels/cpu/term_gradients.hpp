// The gradients of the terms' tables: sums over all rows of tiles.
//
// A part of the backward pass (parts.hpp) adds up its own, and these are added in the order of the parts, so that
// results are equal to the bit on every run.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "parts.hpp"
#include "term_row.hpp"

namespace {

template <class Kind>
class TermGradients {
 public:
  TermGradients(const Problem& p, Team& team, const TermTables<Kind>& tables)
      : p_(p), team_(team), tables_(tables), group_(p.heads / p.kv_heads), width_(padded(p.dim)) {}

  void clear() {
    if (has_bias()) clear(p_.terms->grad_bias, p_.terms->bias_heads * Distances(p_).count);
    if (!has_relative()) return;
    if (p_.is_bfloat16) copy_.make_room(relative_floats());
    clear(relative(), relative_floats());
  }

  void make_room(const Parts& parts) { sums_.make_room(parts.parts.size() * part_floats()); }
  void clear_part(int64_t part) {
    if (part_floats()) std::memset(sums_.get() + part * part_floats(), 0, part_floats() * sizeof(float));
  }

  // Where a part adds up the gradients of a query head.
  TermSums sums_of(int64_t part, int64_t head) const {
    float* bias = bias_of(part, head);
    return {bias ? bias + kFront : nullptr, has_relative() ? relative_of(part) : nullptr};
  }

  // Adds the sums of the parts.
  void add(const Parts& parts) {
    const int64_t n = parts.parts.size();
    if (has_bias())
      team_.run_in_chunks(p_.terms->bias_heads, Distances(p_).count, n, [&](int64_t row, int64_t first, int64_t past) {
        float* to = p_.terms->grad_bias + row * Distances(p_).count;
        for (int64_t part = 0; part < n; ++part) {
          const int64_t key_head = parts.parts[part].key_head % p_.kv_heads;
          if (p_.terms->bias_heads > 1 && key_head != row / group_) continue;
          const float* from = bias_of(part, row) + kFront;
          for (int64_t i = first; i < past; ++i) to[i] += from[i];
        }
      });
    if (has_relative())
      team_.run_in_chunks(1, p_.terms->n_relative, n * p_.dim, [&](int64_t, int64_t first, int64_t past) {
        for (int64_t part = 0; part < n; ++part)
          for (int64_t distance = first; distance < past; ++distance) {
            const float* from = relative_of(part) + tables_.place(distance) * width_;
            for (int64_t d = 0; d < p_.dim; ++d) relative()[distance * p_.dim + d] += from[d];
          }
      });
  }

  void round() const {
    if (!has_relative() || !p_.is_bfloat16) return;
    team_.run_in_chunks(1, relative_floats(), 1, [&](int64_t, int64_t first, int64_t past) {
      round_to_bfloat16(relative() + first, past - first, static_cast<uint16_t*>(p_.terms->grad_relative) + first);
    });
  }

 private:
  void clear(float* sums, int64_t floats) const {
    team_.run_in_chunks(1, floats, 1, [&](int64_t, int64_t first, int64_t past) {
      std::memset(sums + first, 0, (past - first) * sizeof(float));
    });
  }

  bool has_bias() const { return p_.terms && p_.terms->grad_bias; }
  bool has_relative() const { return p_.terms && p_.terms->grad_relative; }
  int64_t relative_floats() const { return p_.terms->n_relative * p_.dim; }
  int64_t bias_floats() const {
    return has_bias() ? (p_.terms->bias_heads == 1 ? 1 : group_) * Distances(p_).floats : 0;
  }
  int64_t part_floats() const { return bias_floats() + (has_relative() ? tables_.places() * width_ : 0); }

  float* bias_of(int64_t part, int64_t head) const {
    if (!has_bias()) return nullptr;
    return sums_.get() + part * part_floats() + (p_.terms->bias_heads == 1 ? 0 : head % group_) * Distances(p_).floats;
  }
  float* relative_of(int64_t part) const { return sums_.get() + part * part_floats() + bias_floats(); }
  float* relative() const { return p_.is_bfloat16 ? copy_.get() : static_cast<float*>(p_.terms->grad_relative); }

  const Problem& p_;
  Team& team_;
  const TermTables<Kind>& tables_;
  const int64_t group_, width_;
  Sums sums_, copy_;
};

}  // namespace

// The tables of a call's terms, as rows of tiles read them: made once for all rows.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "parallel.hpp"
#include "tokens.hpp"

namespace {

constexpr int64_t kFront = kGroup;  // floats before the table of a bias into which vectors may reach

inline bool drops(const Terms& terms) { return terms.dropped_below > 0; }

// A bias by distance with room on both ends, so that vectors can be read and added up without asking where it ends.
struct Distances {
  explicit Distances(const Problem& p)
      : count(p.n_queries + p.n_keys - 1), floats(kFront + count + p.tile + 2 * kGroup) {}
  int64_t count, floats;
};

template <class Kind>
class TermTables {
 public:
  using Element = typename Kind::Element;

  explicit TermTables(const Problem& p) : p_(p) {
    if (!p.terms) return;
    if (p.terms->bias) widen_bias();
    if (p.terms->relative) turn_relative();
  }

  // In powers of two, by the place of a pair: the distance of query 0 from key n_keys - 1 lies at 0.
  const float* bias(int64_t head) const {
    return bias_.get() + (p_.terms->bias_heads == 1 ? 0 : head) * Distances(p_).floats + kFront;
  }
  // Whether the bias of a head forbids some distance.
  bool forbids(int64_t head) const { return p_.terms->bias && forbids_[p_.terms->bias_heads == 1 ? 0 : head]; }

  // The vectors of relative positions with falling distance, as rows [places, padded(dim)] and as columns
  // [dim, places]: distance d at place(d). Beyond the distances there are zeros, two tiles of them at least.
  int64_t places() const { return places_; }
  int64_t place(int64_t distance) const { return 2 * p_.tile + p_.terms->n_relative - 1 - distance; }
  const float* rows() const { return rows_.get(); }
  const float* columns() const { return columns_.get(); }

 private:
  void widen_bias() {
    const Terms& terms = *p_.terms;
    const Distances distances(p_);
    bias_.make_room(terms.bias_heads * distances.floats);
    forbids_.resize(terms.bias_heads);
    in_parallel(p_, terms.bias_heads, 0, [&](int64_t head, Scratch&) {
      const float* from = terms.bias + head * terms.bias_head;
      float *to = bias_.get() + head * distances.floats, least = 0;
      std::fill(to, to + kFront, 0.0f);
      std::fill(to + kFront + distances.count, to + distances.floats, 0.0f);
      to += kFront;
      for (int64_t i = 0; i < distances.count; ++i) {
        to[i] = from[i * terms.bias_distance] * kLog2E;
        least = std::min(least, to[i]);
      }
      forbids_[head] = least == -kInfinity;
    });
  }

  void turn_relative() {
    const Terms& terms = *p_.terms;
    const int64_t width = padded(p_.dim);
    places_ = (terms.n_relative + 4 * p_.tile + kGroup - 1) / kGroup * kGroup;
    rows_.reset(places_ * width);
    columns_.reset(p_.dim * places_);
    in_parallel(p_, places_ / kGroup, 0, [&](int64_t block, Scratch&) {
      const int64_t first = block * kGroup;
      float* rows = rows_.get() + first * width;
      for (int64_t i = 0; i < kGroup; ++i) {
        const int64_t distance = place(0) - (first + i);
        if (distance < 0 || distance >= terms.n_relative) continue;
        const Element* from = static_cast<const Element*>(terms.relative) + distance * terms.relative_distance;
        for (int64_t d = 0; d < p_.dim; ++d) rows[i * width + d] = Kind::widen(from[d * terms.relative_feature]);
      }
      for (int64_t d = 0; d < p_.dim; ++d)
        for (int64_t i = 0; i < kGroup; ++i) columns_.get()[d * places_ + first + i] = rows[i * width + d];
    });
  }

  const Problem& p_;
  Sums bias_, rows_, columns_;
  std::vector<uint8_t> forbids_;
  int64_t places_ = 0;
};

}  // namespace

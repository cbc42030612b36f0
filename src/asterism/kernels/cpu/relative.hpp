// Relative positions in a row of tiles: the products of its queries with the vectors of distances, q . p(d), and back.
//
// In a tile of neighbouring queries and keys the distances are 2 * tile - 1 neighbours. Their products with the
// queries, [query][falling distance], hold the score of query i and key j at column j - i + tile - 1: read with rows
// one number shorter than they are, they are [query][key]. Half of them serve the next tile of keys too. Elsewhere it
// goes pair by pair. All in floats: the vectors are parameters, and their gradients are sums over the sequence.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "row.hpp"
#include "terms.hpp"

namespace {

// The pairs of a tile that are computed: the keys of each group of 16 queries.
struct Pairs {
  const Range* ranges;
  int groups, count, n_keys;  // count: queries

  // Calls body(query, key) for corners of blocks of kBlock queries and keys.
  template <class Body>
  void for_blocks(Body body) const {
    for (int g = 0; g < groups; ++g)
      for (int i = g * kGroup; i < std::min(count, (g + 1) * kGroup); i += kBlock)
        for (int j = ranges[g].begin; j < ranges[g].end; j += kBlock) body(i, j);
  }

  // Calls body(query, key) for each.
  template <class Body>
  void for_each(Body body) const {
    for (int g = 0; g < groups; ++g)
      for (int j = ranges[g].begin; j < ranges[g].end; ++j)
        for (int i = g * kGroup; i < std::min(count, (g + 1) * kGroup); ++i) body(i, j);
  }
};

template <class Kind>
class RelativeRow {
 public:
  static int64_t scratch(const Problem& p) { return p.tile * (padded(p.dim) + 4 * p.tile) + 64; }  // floats

  RelativeRow(const Problem& p, const TermTables<Kind>& tables, Scratch& scratch)
      : p_(p), tables_(tables), t_(static_cast<int>(p.tile)), width_(padded(p.dim)) {
    queries_ = scratch.take<float>(p.tile * width_);
    products_ = scratch.take<float>(2 * p.tile * p.tile);
    gradients_ = scratch.take<float>(2 * p.tile * p.tile);
  }

  void begin(const Tokens<typename Kind::Element>& queries) {
    std::fill_n(queries_, static_cast<int64_t>(t_) * width_, 0.0f);
    for (int i = 0; i < queries.count; ++i)
      for (int d = 0; d < queries.dim; ++d)
        queries_[i * width_ + d] = Kind::widen(queries.row(i)[d * queries.feature]);
    std::fill_n(products_, 2 * t_ * t_, 0.0f);
    std::fill_n(gradients_, 2 * t_ * t_, 0.0f);
    known_ = open_ = kNone;
  }

  // Adds the products to raw scores [key][query] of a tile whose first query stands `distance` after its first key.
  void add(const Pairs& pairs, int64_t distance, float* scores) {
    const int64_t first = place(distance);
    const bool is_next = first == known_ + t_;
    if (is_next) move_half(products_, pairs.count);
    const int from = is_next ? t_ : 0;
    product<FloatUnits, false>(pairs.count, 2 * t_ - from, static_cast<int>(p_.dim), {queries_, width_, 1},
                               tables_.columns() + first + from, tables_.places(), products_ + from, 2 * t_);
    known_ = first;
    pairs.for_blocks([&](int i, int j) {
      alignas(kAlignment) float block[kBlock * kBlock];
      transpose_block(products_ + sheared(i, j), 2 * t_ - 1, block, kBlock);
      for (int row = 0; row < std::min(kBlock, pairs.n_keys - j); ++row) {
        float* to = scores + static_cast<int64_t>(j + row) * t_ + i;
        for (int lane = 0; lane < kBlock; ++lane) to[lane] += block[row * kBlock + lane];
      }
    });
  }

  // The same pair by pair: distance(i, j) is any, below 0 or beyond the table where a pair is not read.
  template <class Distance>
  void add_by_pairs(const Pairs& pairs, Distance distance, float* scores) const {
    pairs.for_each([&](int i, int j) {
      const int64_t d = distance(i, j);
      if (!has(d)) return;
      const float *row = row_of(d), *query = queries_ + i * width_;
      Vector sums = {};
      for (int f = 0; f < width_; f += kLanes) sums += load(row + f) * load(query + f);
      float sum = 0;
      for (int lane = 0; lane < kLanes; ++lane) sum += sums[lane];
      scores[static_cast<int64_t>(j) * t_ + i] += sum;
    });
  }

  // Where gradients are added up: of the queries [tile, padded(dim)], and of the vectors, like TermTables::rows();
  // null: not asked for.
  struct Gradients {
    float *queries, *rows;
  };

  // Takes the gradients of raw scores [key][query] of a tile. What the next tile adds to waits for it.
  void take(const Pairs& pairs, int64_t distance, const float* grad_scores, const Gradients& to) {
    const int64_t first = place(distance);
    if (open_ != kNone && first == open_ + t_) {
      put(0, pairs.count, to);
      move_half(gradients_, t_);
      for (int i = 0; i < t_; ++i) std::fill_n(gradients_ + (2 * i + 1) * t_, t_, 0.0f);
    } else {
      finish(pairs.count, to);
    }
    open_ = first;
    pairs.for_blocks([&](int i, int j) {
      transpose_edge(grad_scores + static_cast<int64_t>(j) * t_ + i, t_, std::min(kBlock, pairs.n_keys - j), kBlock,
                     gradients_ + sheared(i, j), 2 * t_ - 1);
    });
  }

  template <class Distance>
  void take_by_pairs(const Pairs& pairs, Distance distance, const float* grad_scores, const Gradients& to) const {
    pairs.for_each([&](int i, int j) {
      const int64_t d = distance(i, j);
      if (!has(d)) return;
      const Vector factor = splat(grad_scores[static_cast<int64_t>(j) * t_ + i]);
      if (to.queries) add_scaled(factor, row_of(d), to.queries + i * width_);
      if (to.rows) add_scaled(factor, queries_ + i * width_, to.rows + tables_.place(d) * width_);
    });
  }

  // What still waits.
  void finish(int count, const Gradients& to) {
    if (open_ == kNone) return;
    put(0, count, to);
    put(1, count, to);
    std::fill_n(gradients_, 2 * t_ * t_, 0.0f);
    open_ = kNone;
  }

 private:
  static constexpr int64_t kNone = INT64_MIN / 2;

  // Of the furthest distance in the tile. Tiles that are read lie within the ends of the tables.
  int64_t place(int64_t distance) const {
    return std::clamp<int64_t>(tables_.place(distance + t_ - 1), 0, tables_.places() - 2 * t_);
  }
  bool has(int64_t distance) const { return 0 <= distance && distance < p_.terms->n_relative; }
  const float* row_of(int64_t distance) const { return tables_.rows() + tables_.place(distance) * width_; }
  int64_t sheared(int i, int j) const { return t_ - 1 + static_cast<int64_t>(i) * (2 * t_ - 1) + j; }

  // The second half of each row becomes its first.
  void move_half(float* rows, int count) const {
    for (int i = 0; i < count; ++i) std::memcpy(rows + 2 * i * t_, rows + (2 * i + 1) * t_, t_ * sizeof(float));
  }

  // Adds a half of the gradients, those of `tile` distances, to the queries and the vectors.
  void put(int half, int count, const Gradients& to) const {
    const float* gradients = gradients_ + half * t_;
    const int64_t at = (open_ + half * t_) * width_;
    if (to.queries)
      product<FloatUnits, true>(count, width_, t_, {gradients, 2 * t_, 1}, tables_.rows() + at, width_, to.queries,
                                width_);
    if (to.rows)
      product<FloatUnits, true>(t_, width_, count, {gradients, 1, 2 * t_}, queries_, width_, to.rows + at, width_);
  }

  void add_scaled(Vector factor, const float* from, float* to) const {
    for (int f = 0; f < width_; f += kLanes) store(to + f, load(to + f) + factor * load(from + f));
  }

  const Problem& p_;
  const TermTables<Kind>& tables_;
  const int t_, width_;
  float *queries_, *products_, *gradients_;  // [tile, padded(dim)], and twice [query][2 * tile]
  int64_t known_ = kNone, open_ = kNone;     // the places of the first of the products and of the gradients
};

}  // namespace

// Attention to blocks of keys that queries chose, each query its own.
//
// Queries that stand side by side choose different blocks, so a tile of them shares no keys. Turned round, a tile of keys
// has many queries: those that chose it, wherever they stand. They are gathered, row by row, and multiply the tile, which
// is packed once (as FlashMoBA does on GPUs, arXiv 2511.11571). What a query has found so far lies in memory in between.
// For each query, tiles come in ascending order, whatever the threads, so the results do not depend on them.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "batch.hpp"
#include "interface.hpp"
#include "memory.hpp"
#include "parallel.hpp"
#include "products.hpp"
#include "results.hpp"
#include "tokens.hpp"
#include "vectors.hpp"

namespace {

constexpr int kGathered = 64;            // queries that multiply a tile together
constexpr int64_t kShortestStretch = 2048;  // queries of a task, of each head
constexpr int64_t kStretches = 32;          // tasks there are, about

// A stretch of queries whose heads share a key head.
struct ChosenTask {
  int64_t batch, kv_head, first, past;
};

// How the queries are cut into stretches: by shapes alone.
inline int64_t stretch_of(const Problem& p, int64_t longest) {
  const int64_t wanted = p.n_queries * p.batch * p.kv_heads / kStretches;
  return std::min(p.n_queries, std::clamp(wanted, kShortestStretch, longest));
}

inline int64_t tiles_of(const Problem& p) { return (p.n_keys + p.tile - 1) / p.tile; }

// For each tile of keys, which queries of a stretch chose it and may read some of it.
class ChosenLists {
 public:
  static int64_t scratch(const Problem& p, const Chosen& c, int64_t stretch) {
    const int64_t tiles = tiles_of(p), entries = most_entries(p, c, stretch);
    return (2 * tiles + 2 * entries + 64) * static_cast<int64_t>(sizeof(int32_t)) + 4 * kAlignment + tiles * 8;
  }

  ChosenLists(const Problem& p, const Chosen& c, int64_t stretch, Scratch& scratch)
      : p_(p), c_(c), tiles_(tiles_of(p)) {
    const int64_t entries = most_entries(p, c, stretch);
    starts_ = scratch.take<int64_t>(tiles_ + 1);
    queries_ = scratch.take<int32_t>(entries);
    kinds_ = scratch.take<int32_t>(entries);
  }

  // The queries of a task with the choice of one of its heads, for tiles [first, past).
  void fill(const ChosenTask& task, int64_t head, int64_t first, int64_t past) {
    const int32_t* indices = c_.indices + (task.batch * c_.heads + head) * c_.shares * c_.width;
    const Stretch here = {indices, task.first, task.past, first, past};
    std::fill(starts_, starts_ + tiles_ + 1, 0);
    each(here, [&](int64_t tile, int64_t, int32_t) { ++starts_[tile + 1]; });
    for (int64_t i = 0; i < tiles_; ++i) starts_[i + 1] += starts_[i];
    each(here, [&](int64_t tile, int64_t query, int32_t kind) {
      const int64_t at = starts_[tile]++;
      queries_[at] = static_cast<int32_t>(query);
      kinds_[at] = kind;
    });
    for (int64_t i = tiles_; i > 0; --i) starts_[i] = starts_[i - 1];
    starts_[0] = 0;
  }

  int64_t tiles() const { return tiles_; }
  int64_t begin(int64_t tile) const { return starts_[tile]; }
  int64_t end(int64_t tile) const { return starts_[tile + 1]; }
  int64_t query(int64_t at) const { return queries_[at]; }
  int32_t kind(int64_t at) const { return kinds_[at]; }

 private:
  static int64_t most_entries(const Problem& p, const Chosen& c, int64_t stretch) {
    return stretch * c.width * std::min(c.block / p.tile, tiles_of(p));
  }

  struct Stretch {
    const int32_t* indices;
    int64_t first_query, past_query, first_tile, past_tile;
  };

  template <class Body>
  void each(const Stretch& here, Body body) const {
    if (!p_.n_passes) return;
    const Pass& pass = p_.passes[0];
    const int64_t per_block = c_.block / p_.tile, skipped = p_.query_offset / c_.query_block;
    for (int64_t query = here.first_query; query < here.past_query; ++query) {
      const int32_t* chosen = here.indices + ((p_.query_offset + query) / c_.query_block - skipped) * c_.width;
      const int64_t* offsets = pass.row_offsets + query / p_.tile;
      for (int64_t i = 0; i < c_.width && chosen[i] >= 0; ++i)
        for (int64_t tile = std::max(here.first_tile, chosen[i] * per_block);
             tile < std::min(here.past_tile, (chosen[i] + 1) * per_block); ++tile)
          if (const int64_t at = entry(pass, offsets[0], offsets[1], tile); at >= 0) body(tile, query, pass.kinds[at]);
    }
  }

  // Where a tile stands in a row of the plan, -1 if nowhere. Rows mostly have no gaps.
  static int64_t entry(const Pass& pass, int64_t begin, int64_t end, int64_t tile) {
    if (begin == end) return -1;
    const int64_t guess = begin + tile - pass.columns[begin];
    if (guess >= begin && guess < end && pass.columns[guess] == tile) return guess;
    const int32_t* found = std::lower_bound(pass.columns + begin, pass.columns + end, static_cast<int32_t>(tile));
    return found < pass.columns + end && *found == tile ? found - pass.columns : -1;
  }

  const Problem& p_;
  const Chosen& c_;
  const int64_t tiles_;
  int64_t* starts_;  // [tiles + 1]
  int32_t *queries_, *kinds_;
};

// A tile of keys and values as floats, and the queries that multiply it.
template <class Kind>
class ChosenTile {
 public:
  using Element = typename Kind::Element;

  static int64_t scratch(const Problem& p) {
    const int64_t t = p.tile, d = padded(p.dim), dv = padded(p.value_dim);
    return (t * (3 * d + 3 * dv + 1) + kGathered * (d + t) + 1024) * static_cast<int64_t>(sizeof(float));
  }

  ChosenTile(const Problem& p, Scratch& scratch)
      : width(padded(p.dim)), value_width(padded(p.value_dim)), p_(p), t_(static_cast<int>(p.tile)) {
    keys = scratch.take<float>(t_ * width);
    turned_keys = scratch.take<float>(t_ * width);
    values = scratch.take<float>(t_ * value_width);
    turned_values = scratch.take<float>(t_ * value_width);
    clear_values_ = scratch.take<float>(t_ * value_width);
    clear_keys_ = scratch.take<float>(t_ * width);
    forbidden_ = scratch.take<float>(t_);
    queries = scratch.take<float>(kGathered * width);
    scores = scratch.take<float>(kGathered * t_);
  }

  // The tile of keys at `tile`, and if asked for its values turned, too.
  void take(const ChosenTask& task, int64_t tile, bool turns_values) {
    const int64_t first = tile * t_;
    n_keys = static_cast<int>(std::min<int64_t>(t_, p_.n_keys - first));
    for (int j = 0; j < n_keys; ++j) {
      copy_token(p_.k, task.batch, task.kv_head, first + j, p_.dim, keys + j * width);
      copy_token(p_.v, task.batch, task.kv_head, first + j, p_.value_dim, values + j * value_width);
    }
    is_cut_ = n_keys < t_;
    for (int j = 0; j < t_; ++j) {
      const bool reads = j < n_keys && (!p_.key_mask || p_.key_mask[task.batch * p_.n_keys + first + j]);
      forbidden_[j] = reads ? 0 : -kInfinity;
      if (reads) continue;
      is_cut_ = true;
      std::fill_n(keys + j * width, width, 0.0f);  // what is not read may be NaN
      std::fill_n(values + j * value_width, value_width, 0.0f);
    }
    transpose(keys, width, t_, static_cast<int>(p_.dim), turned_keys, t_);
    if (turns_values) transpose(values, value_width, t_, static_cast<int>(p_.value_dim), turned_values, t_);
    used_keys = keys;
    used_values = values;
  }

  // Row i of `queries` becomes that query of a head.
  void gather(int64_t batch, int64_t head, int64_t query, int i) {
    copy_token(p_.q, batch, head, query, p_.dim, queries + i * width);
  }

  // One token of a head as floats, filled up to whole vectors.
  static void copy_token(const Tensor& x, int64_t batch, int64_t head, int64_t token, int64_t dim, float* to) {
    const Element* from = static_cast<const Element*>(x.data) + batch * x.batch + head * x.head + token * x.token;
    int64_t d = 0;
    if (x.feature == 1)
      for (; d + kLanes <= dim; d += kLanes) store(to + d, load_floats(from + d));
    for (; d < dim; ++d) to[d] = Kind::widen(from[d * x.feature]);
    for (; d < padded(dim); ++d) to[d] = 0;
  }

  // Logarithms to base 2 of weights, [row][key], of the queries of entries [begin, end); -infinity for what they may not
  // read.
  void score(const ChosenLists& lists, int64_t begin, int64_t end) {
    const int rows = static_cast<int>(end - begin);
    product<FloatUnits, false>(rows, t_, static_cast<int>(p_.dim), {queries, width, 1}, turned_keys, t_, scores, t_);
    const Vector scale = splat(p_.scale * kLog2E);
    for (int64_t at = 0; at < static_cast<int64_t>(rows) * t_; at += kLanes) store(scores + at, load(scores + at) * scale);
    used_keys = keys;
    used_values = values;
    bool is_mixed = false;
    for (int i = 0; i < rows; ++i) {
      float* row = scores + i * t_;
      if (is_cut_)  // not an addition, because what is not read may have become NaN
        for (int j = 0; j < t_; ++j) row[j] = forbidden_[j] == 0 ? row[j] : -kInfinity;
      const int32_t kind = lists.kind(begin + i);
      if (!kind) continue;
      is_mixed = true;
      const uint64_t* bits = p_.masks + (kind - 1) * p_.tile * p_.words;
      const int64_t place = lists.query(begin + i) % t_;
      for (int j = 0; j < t_; ++j)
        if (!(bits[j * p_.words + place / 64] >> (place % 64) & 1)) row[j] = -kInfinity;
    }
    if (is_mixed) leave_out_unread(rows);
  }

  const int width, value_width;
  int n_keys = 0;
  float *keys, *turned_keys;      // [tile][width], [dim][tile]
  float *values, *turned_values;  // the same of values
  float *queries, *scores;        // [kGathered][width], [kGathered][tile]
  const float *used_keys, *used_values;  // without those that no row of the last scores reads

 private:
  // Keys and values that no row reads become 0 in copies of the tile: a weight of 0 times NaN would be NaN.
  void leave_out_unread(int rows) {
    std::copy_n(keys, t_ * width, clear_keys_);
    std::copy_n(values, t_ * value_width, clear_values_);
    for (int j = 0; j < t_; ++j) {
      bool is_read = false;
      for (int i = 0; i < rows && !is_read; ++i) is_read = scores[i * t_ + j] != -kInfinity;
      if (is_read) continue;
      std::fill_n(clear_keys_ + j * width, width, 0.0f);
      std::fill_n(clear_values_ + j * value_width, value_width, 0.0f);
    }
    used_keys = clear_keys_;
    used_values = clear_values_;
  }

  const Problem& p_;
  const int t_;
  bool is_cut_ = false;
  float *clear_values_, *clear_keys_, *forbidden_;
};

// The query heads that read a key head by one head of the choice: all that share it, or a single one.
struct Members {
  int64_t choice, first, past;
};

template <class Body>
void for_members(const Problem& p, const Chosen& c, int64_t kv_head, Body body) {
  const int64_t group = p.heads / p.kv_heads, first = kv_head * group;
  if (c.heads < p.heads || group == 1) return body(Members{c.heads == 1 ? 0 : kv_head, first, first + group});
  for (int64_t head = first; head < first + group; ++head) body(Members{head, head, head + 1});
}

}  // namespace

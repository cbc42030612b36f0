// Attention of a few queries against the slots of a cache.
//
// Keys and values are read once, where they lie, and only in slots that a query may read: what it costs is the way from
// memory. The queries of all heads that share a key head are a lot, which is computed together. Its slots are cut into
// parts, by their number alone, so that one head keeps all threads busy; whoever ends the last part of a lot merges all
// in their order. So the result does not depend on threads.

#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>

#include "decode_rows.hpp"
#include "interface.hpp"
#include "memory.hpp"
#include "parallel.hpp"
#include "vectors.hpp"

namespace {

constexpr int kSlotsPerStep = 256;  // slots of a step of the online softmax: keys and values stay in the second cache
constexpr int kMostRows = 64;       // queries that are computed together, of all heads that share a key head
constexpr int64_t kParts = 128;     // lots are cut into about so many parts
constexpr int64_t kAlone = 1 << 18;  // bytes of keys and values that one thread reads sooner than others are awake

// What a query has found in the slots that it has read: sums of weighted values, and below them weights relative to the
// highest score. Scores are logarithms to base 2.
struct Found {
  float* sums;
  float highest, total;
};

// `from` joins `to`: sums, total and highest score.
inline void merge(const Found& from, Found& to, int width) {
  if (from.total == 0) return;
  const float highest = from.highest > to.highest ? from.highest : to.highest;
  const float keep = std::exp2(to.highest - highest), add = std::exp2(from.highest - highest);
  const Vector kept = splat(keep), added = splat(add);
  for (int d = 0; d < width; d += kLanes) store(to.sums + d, load(to.sums + d) * kept + load(from.sums + d) * added);
  to.total = to.total * keep + from.total * add;
  to.highest = highest;
}

inline int rounded_up(int64_t n) { return static_cast<int>((n + kLanes - 1) / kLanes * kLanes); }

// The queries of a lot, in rows: `row` counts queries of all heads that share a key head, heads fastest.
template <class Element>
class Lot {
 public:
  Lot(const Slots& s, int64_t lot, Scratch& scratch)
      : s_(s), group_(s.heads / s.kv_heads), width_(rounded_up(s.dim)), value_width_(rounded_up(s.value_dim)) {
    const int64_t all = group_ * s.n_queries, blocks = blocks_of(s);
    batch_ = lot / blocks / s.kv_heads;
    kv_head_ = lot / blocks % s.kv_heads;
    first_ = lot % blocks * kMostRows;
    count_ = static_cast<int>(std::min<int64_t>(kMostRows, all - first_));
    q_ = scratch.take<float>(static_cast<int64_t>(count_) * width_);
    scores_ = scratch.take<float>(kRowsTogether * kScores);
    common_ = scratch.take<int32_t>(kSlotsPerStep);
    for (int r = 0; r < kRowsTogether; ++r) own_[r] = scratch.take<int32_t>(kSlotsPerStep);
  }

  static int64_t blocks_of(const Slots& s) {
    return (s.heads / s.kv_heads * s.n_queries + kMostRows - 1) / kMostRows;
  }

  static int64_t rows_of(const Slots& s) { return std::min<int64_t>(kMostRows, s.heads / s.kv_heads * s.n_queries); }

  static int64_t scratch_bytes(const Slots& s) {
    return rows_of(s) * rounded_up(s.dim) * 4 + kRowsTogether * kScores * 4 + (1 + kRowsTogether) * kSlotsPerStep * 4 +
           (3 + kRowsTogether) * kAlignment;
  }

  int count() const { return count_; }
  int value_width() const { return value_width_; }

  // Reads slots [begin, end) for all rows into `found`, which starts with nothing.
  void read(int64_t begin, int64_t end, Found* found) {
    load_queries();
    for (int64_t slot = begin; slot < end; slot += kSlotsPerStep) {
      const int n = static_cast<int>(std::min<int64_t>(kSlotsPerStep, end - slot));
      for (int r = 0; r < count_;) {
        const int left = count_ - r;
        if (left >= 4)
          step<4>(r, slot, n, found), r += 4;
        else if (left >= 2)
          step<2>(r, slot, n, found), r += 2;
        else
          step<1>(r, slot, n, found), r += 1;
      }
    }
  }

  // Writes the results of a row.
  void write(int row, Found found) const {
    const int64_t at = (batch_ * s_.heads + head(row)) * s_.n_queries + query(row);
    if (s_.sinks) {
      const float sink = s_.sinks[head(row)] * kLog2E;
      const float highest = std::max(found.highest, sink);
      if (highest != -kInfinity) {
        const float keep = std::exp2(found.highest - highest);
        found = {found.sums, highest, found.total * keep + std::exp2(sink - highest)};
        for (int d = 0; d < value_width_; ++d) found.sums[d] *= keep;
      }
    }
    if (s_.lse) s_.lse[at] = found.total == 0 ? -kInfinity : (std::log2(found.total) + found.highest) * kLn2;
    const float factor = found.total == 0 ? 0 : 1 / found.total;
    Element* out = static_cast<Element*>(s_.out) + at * s_.value_dim;
    for (int d = 0; d < s_.value_dim; ++d) put(found.sums[d] * factor, out + d);
  }

 private:
  static constexpr int kScores = kSlotsPerStep + kLanes;  // of a row, and what products write behind them

  int64_t head(int row) const { return kv_head_ * group_ + (first_ + row) % group_; }
  int64_t query(int row) const { return (first_ + row) / group_; }

  static void put(float x, float* to) { *to = x; }
  static void put(float x, uint16_t* to) { *to = float_to_bfloat16(x); }
  static float get(const float* x) { return *x; }
  static float get(const uint16_t* x) { return bfloat16_to_float(*x); }

  // The numbers of a row of `x` from `slot` on.
  template <class Number>
  const Number* of(const Tensor& x, int row, int64_t slot) const {
    return static_cast<const Number*>(x.data) + batch_ * x.batch + head(row) * x.head + query(row) * x.token +
           slot * x.feature;
  }

  Slotted<Element> slotted(const Tensor& x, int64_t slot, int64_t dim) const {
    const Element* data = static_cast<const Element*>(x.data) + batch_ * x.batch + kv_head_ * x.head + slot * x.token;
    return {data, x.token, static_cast<int>(dim)};
  }

  bool has_terms() const { return s_.before.data || s_.bias.data || s_.softcap > 0; }

  void load_queries() {
    const float scale = has_terms() ? s_.scale : s_.scale * kLog2E;
    for (int r = 0; r < count_; ++r) {
      const Element* from = of<Element>(s_.q, r, 0);
      float* to = q_ + static_cast<int64_t>(r) * width_;
      for (int d = 0; d < s_.dim; ++d) to[d] = get(from + d * s_.q.feature) * scale;
      std::fill(to + s_.dim, to + width_, 0.0f);
    }
  }

  // Finds which of n slots `rows` rows read: in common_ those that all read, in own_ the others of each row.
  template <int rows>
  void choose(int row, int64_t slot, int n) {
    n_common_ = 0;
    std::fill(n_own_, n_own_ + rows, 0);
    const uint8_t* allowed[rows];
    for (int r = 0; r < rows; ++r) allowed[r] = of<uint8_t>(s_.allowed, row + r, slot);
    for (int first = 0; first < n; first += 64) {
      const int some = std::min(64, n - first);
      uint64_t bits[rows], all = ~uint64_t{0};
      for (int r = 0; r < rows; ++r) {
        const bool is_last = r && allowed[r] == allowed[r - 1];
        bits[r] = is_last ? bits[r - 1] : bits_of(allowed[r] + first * s_.allowed.feature, s_.allowed.feature, some);
        all &= bits[r];
      }
      n_common_ += list_of(all, first, common_ + n_common_);
      for (int r = 0; r < rows; ++r) n_own_[r] += list_of(bits[r] & ~all, first, own_[r] + n_own_[r]);
    }
  }

  // One step of the online softmax of `rows` rows, over n slots.
  template <int rows>
  void step(int row, int64_t slot, int n, Found* found) {
    choose<rows>(row, slot, n);
    const auto keys = slotted(s_.k, slot, s_.dim), values = slotted(s_.v, slot, s_.value_dim);
    const float* q = q_ + static_cast<int64_t>(row) * width_;
    for (int j = 0; j < std::min(values.ahead(), n_common_); ++j) prefetch(values, common_[j]);  // read after the keys
    score<rows>(q, width_, keys, common_, n_common_, scores_, kScores);
    for (int r = 0; r < rows; ++r) {
      float* scores = scores_ + r * kScores;
      if (has_terms()) add_terms(row + r, slot, common_, n_common_, scores);
      score<1>(q + r * width_, width_, keys, own_[r], n_own_[r], scores + n_common_, kScores);
      if (has_terms()) add_terms(row + r, slot, own_[r], n_own_[r], scores + n_common_);
      weigh(scores, n_common_ + n_own_[r], found[row + r]);
    }
    float* sums = found[row].sums;
    add_values<rows>(scores_, kScores, values, common_, n_common_, sums, value_width_);
    for (int r = 0; r < rows; ++r)
      add_values<1>(scores_ + r * kScores + n_common_, kScores, values, own_[r], n_own_[r], sums + r * value_width_,
                    value_width_);
  }

  // What is added to the scores of a row in the slots of a list, and how large they may be.
  void add_terms(int row, int64_t slot, const int32_t* list, int n, float* scores) const {
    if (s_.before.data) {
      const float* before = of<float>(s_.before, row, slot);
      for (int j = 0; j < n; ++j) scores[j] += s_.scale * before[list[j] * s_.before.feature];
    }
    if (s_.softcap > 0)
      for (int j = 0; j < n; j += kLanes)  // what is behind the last score is written again later
        store(scores + j, tanh(load(scores + j) * splat(1 / s_.softcap)) * splat(s_.softcap));
    if (s_.bias.data) {
      const float* bias = of<float>(s_.bias, row, slot);
      for (int j = 0; j < n; ++j) scores[j] += bias[list[j] * s_.bias.feature];
    }
    for (int j = 0; j < n; ++j) scores[j] *= kLog2E;
  }

  // Scores -> weights, in place; what was found before is scaled down to the new highest score.
  void weigh(float* scores, int n, Found& found) const {
    if (!n) return;
    std::fill(scores + n, scores + rounded_up(n), -kInfinity);
    Vector highest = splat(found.highest);
    for (int j = 0; j < n; j += kLanes) highest = larger(load(scores + j), highest);
    float lanes[kLanes];
    store(lanes, highest);
    const float top = *std::max_element(lanes, lanes + kLanes);
    const Vector shift = splat(top == -kInfinity ? 0 : top);
    Vector total = {};
    for (int j = 0; j < n; j += kLanes) {
      const Vector weight = exp2(load(scores + j) - shift);
      total += weight;
      store(scores + j, weight);
    }
    store(lanes, total);
    float sum = 0;
    for (float x : lanes) sum += x;
    if (top != found.highest) {
      const float keep = std::exp2(found.highest - top);
      const Vector kept = splat(keep);
      for (int d = 0; d < value_width_; d += kLanes) store(found.sums + d, load(found.sums + d) * kept);
      found.total *= keep;
      found.highest = top;
    }
    found.total += sum;
  }

  const Slots& s_;
  const int64_t group_;
  const int width_, value_width_;
  int64_t batch_, kv_head_, first_;
  int count_;
  float *q_, *scores_;
  int32_t *common_, *own_[kRowsTogether];
  int n_common_, n_own_[kRowsTogether];
};

template <class Element>
class Decode {
 public:
  explicit Decode(const Slots& s) : s_(s), value_width_(rounded_up(s.value_dim)) {
    const int64_t steps = (s.n_slots + kSlotsPerStep - 1) / kSlotsPerStep;
    rows_ = Lot<Element>::rows_of(s);
    lots_ = s.batch * s.kv_heads * Lot<Element>::blocks_of(s);
    steps_ = std::max<int64_t>(1, steps);
    parts_ = std::clamp<int64_t>((kParts + lots_ - 1) / std::max<int64_t>(1, lots_), 1, steps_);
  }

  void run() {
    thread_local Sums kept;
    kept.make_room(lots_ * parts_ * rows_ * (value_width_ + 2));
    sums_ = kept.get();
    highest_ = sums_ + lots_ * parts_ * rows_ * value_width_;
    totals_ = highest_ + lots_ * parts_ * rows_;
    unfinished_.reset(new std::atomic<int64_t>[lots_]);
    for (int64_t i = 0; i < lots_; ++i) unfinished_[i].store(parts_, std::memory_order_relaxed);
    in_parallel(s_, lots_ * parts_, Lot<Element>::scratch_bytes(s_),
                [&](int64_t i, Scratch& scratch) { part(i / parts_, i % parts_, scratch); });
  }

 private:
  Found found(int64_t lot, int64_t part, int row) const {
    const int64_t at = (lot * parts_ + part) * rows_ + row;
    return {sums_ + at * value_width_, highest_[at], totals_[at]};
  }

  void part(int64_t number, int64_t part, Scratch& scratch) {
    Lot<Element> lot(s_, number, scratch);
    Found rows[kMostRows];
    for (int r = 0; r < lot.count(); ++r) {
      rows[r] = {found(number, part, r).sums, -kInfinity, 0};
      std::fill_n(rows[r].sums, value_width_, 0.0f);
    }
    lot.read(slot(part), slot(part + 1), rows);
    for (int r = 0; r < lot.count(); ++r) {
      const int64_t at = (number * parts_ + part) * rows_ + r;
      highest_[at] = rows[r].highest;
      totals_[at] = rows[r].total;
    }
    if (unfinished_[number].fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    for (int r = 0; r < lot.count(); ++r) {
      Found all = found(number, 0, r);
      for (int64_t other = 1; other < parts_; ++other) merge(found(number, other, r), all, value_width_);
      lot.write(r, all);
    }
  }

  // Where a part begins.
  int64_t slot(int64_t part) const { return std::min(s_.n_slots, steps_ * part / parts_ * kSlotsPerStep); }

  const Slots& s_;
  const int value_width_;
  int64_t rows_, lots_, steps_, parts_;
  float *sums_, *highest_, *totals_;
  std::unique_ptr<std::atomic<int64_t>[]> unfinished_;
};

}  // namespace

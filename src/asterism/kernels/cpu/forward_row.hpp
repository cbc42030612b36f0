// Forward through one row of tiles, with the softmax computed online (Milakov 2018).

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "term_row.hpp"

namespace {

template <class Kind>
class ForwardRow : public TermRow<Kind> {
  using Base = TermRow<Kind>;
  using Base::count_, Base::factor_, Base::groups_, Base::highest_, Base::p_, Base::pass_, Base::ranges_, Base::rows_,
      Base::t_, Base::total_, Base::value_row_width_, Base::value_width_;

 public:
  ForwardRow(const Problem& p, const Pass& pass, const TermTables<Kind>& tables, Scratch& scratch)
      : Base(p, pass, tables, scratch) {
    const int64_t keys = std::max(kKeysPerStep, t_);
    scores_ = scratch.take<float>(keys * t_);
    values_ = scratch.take<float>((keys + 1) * value_width_);
    sums_ = scratch.take<float>(static_cast<int64_t>(t_) * value_width_);
    step_highest_ = scratch.take<float>(t_);
    if (this->has_dropout()) kept_ = scratch.take<uint64_t>((keys + 1) * p.words);
    std::fill(step_highest_, step_highest_ + t_, -kInfinity);
  }

  // Softmax with nothing read yet.
  void begin(int64_t batch, int64_t head, int64_t row) {
    Base::begin(batch, head, row);
    std::fill(sums_, sums_ + static_cast<int64_t>(t_) * value_width_, 0.0f);
    std::fill(highest_, highest_ + t_, -kInfinity);
    std::fill(total_, total_ + t_, 0.0f);
  }

  // Softmax continued from the output and log-sum-exp that earlier passes left.
  void resume() { this->load_outputs(sums_, value_width_); }

  void read(int64_t begin, int64_t end) {
    const int tiles_per_step = std::max(1, kKeysPerStep / t_);
    while (begin < end) {
      int n_keys = 0;
      const int64_t step_end = std::min(end, begin + tiles_per_step);
      for (; begin < step_end; ++begin) n_keys += read_tile(pass_.columns[begin], pass_.kinds[begin], n_keys);
      if (n_keys) step();
    }
  }

  // Writes the output and log-sum-exp of the queries, or those of a part of the row: [t, value_dim], then [t].
  void finish() { this->store_outputs(sums_, value_width_); }
  void finish_part(float* part) { this->store_part(sums_, value_width_, part); }

 private:
  // Scores and values of one tile behind the `before` keys of this step; returns how many keys there are.
  int read_tile(int64_t column, int32_t kind, int before) {
    const int n_keys = this->keys_in(column);
    Allowed may = this->allowed(column, kind, n_keys);
    if (this->has_terms() && !may.nothing) this->enter(column, n_keys, may);
    if (may.nothing) return 0;
    float* scores = scores_ + static_cast<int64_t>(before) * t_;
    const Vector scale = splat(p_.scale * kLog2E);
    this->score(column, may, n_keys, scores);
    if (this->has_terms())
      add_terms(column, may, n_keys, before, scores);
    else
      for (int g = 0; g < groups_; ++g)
        scale_and_mask(may, g, scores, [scale](Vector raw, int, int) { return raw * scale; });
    for (int g = 0; g < groups_; ++g) remember(g, before, n_keys);
    const auto v = this->tokens(p_.v, this->kv_head(), pass_.key_index, column * t_, n_keys, p_.value_dim);
    if constexpr (Kind::kPairs) {
      const Matrix rows = rows_of<Kind>(v, !may.has_unread, rows_, value_row_width_);
      this->clear_unread(may, n_keys, rows_, value_row_width_);
      float* values = values_ + static_cast<int64_t>(before / 2) * value_width_;
      pair_tokens(rows, n_keys, v.dim, values, value_width_);
      if (n_keys % 2) std::fill(scores + n_keys * t_, scores + (n_keys + 1) * t_, -kInfinity);
      if (n_keys % 2 && this->has_dropout()) std::fill_n(kept_ + (before + n_keys) * p_.words, p_.words, 0);
      return n_keys + n_keys % 2;
    } else {
      float* values = values_ + static_cast<int64_t>(before) * value_width_;
      pack_rows<Kind>(v, values, value_width_);
      this->clear_unread(may, n_keys, values, value_width_);
      return n_keys;
    }
  }

  void add_terms(int64_t column, const Allowed& may, int n_keys, int before, float* scores) {
    this->add_relative(may, n_keys, scores);
    this->with_terms([&](auto bias, auto is_capped) {
      for (int g = 0; g < groups_; ++g)
        scale_and_mask(may, g, scores, [&](Vector raw, int j, int i) {
          Vector slope;
          return this->template score_of<bias.value, is_capped.value>(raw, j, i, &slope);
        });
    });
    if (this->has_dropout()) this->draw(column, n_keys, kept_ + before * p_.words);
  }

  // Raw scores of a group of queries -> scaled(raw, key, query) and masked. Also notes the highest score of each query
  // in the step. What the inner loop asks is in local variables: a member would be read again after every store.
  template <class Scaled>
  void scale_and_mask(const Allowed may, int g, float* scores, Scaled scaled) {
    const Range keys = ranges_[g];
    const int64_t row = t_;
    for (int i = g * kGroup; i < (g + 1) * kGroup; i += kLanes) {
      Vector highest = load(step_highest_ + i);
      for (int j = keys.begin; j < keys.end; ++j) {
        float* at = scores + j * row + i;
        Vector x = scaled(load(at), j, i);
        if (may.bits) x = forbid(x, may.lanes(j, i));
        highest = larger(x, highest);
        store(at, x);
      }
      store(step_highest_ + i, highest);
    }
  }

  // Notes which keys of the step a group of queries reads: the tile's range, an odd end filled up to a pair.
  void remember(int g, int before, int n_keys) {
    Range keys = ranges_[g];
    if (keys.begin == keys.end) return;
    if (Kind::kPairs && keys.end == n_keys) keys.end += n_keys % 2;
    keys = {before + keys.begin, before + keys.end};
    Range* last = step_ranges_[g] + n_step_ranges_[g] - 1;
    if (n_step_ranges_[g] && last->end == keys.begin)
      last->end = keys.end;
    else
      step_ranges_[g][n_step_ranges_[g]++] = keys;
  }

  // One step of the online softmax over the scores and values that were read.
  void step() {
    for (int g = 0; g < groups_; ++g) {
      bool rescale = false;
      for (int i = g * kGroup; i < (g + 1) * kGroup; i += kLanes) rescale |= exponentiate(g, i);
      if (rescale) scale_sums(g);
    }
    for (int first = 0, past; first < groups_; first = past) {
      for (past = first + 1; past < groups_ && equal_ranges(first, past);) ++past;
      add_values(first, past);
    }
    std::fill(n_step_ranges_, n_step_ranges_ + groups_, 0);
    std::fill(step_highest_, step_highest_ + t_, -kInfinity);
  }

  bool equal_ranges(int a, int b) const {
    return n_step_ranges_[a] == n_step_ranges_[b] &&
           std::equal(step_ranges_[a], step_ranges_[a] + n_step_ranges_[a], step_ranges_[b]);
  }

  // Weights of kLanes queries of a group; true if what was summed before must be scaled down.
  bool exponentiate(int g, int i) {
    const Vector before = load(highest_ + i), highest = larger(load(step_highest_ + i), before);
    const Vector shift = highest == splat(-kInfinity) ? Vector{} : highest;
    const Vector factor = exp2(before - shift);
    Vector total = load(total_ + i) * factor;
    for (const Range *keys = step_ranges_[g], *end = keys + n_step_ranges_[g]; keys < end; ++keys)
      total += this->has_dropout() ? weigh<true>(*keys, i, shift) : weigh<false>(*keys, i, shift);
    store(highest_ + i, highest);
    store(total_ + i, total);
    store(factor_ + i, factor);
    return std::any_of(factor_ + i, factor_ + i + kLanes, [](float x) { return x != 1; });
  }

  // Scores -> weights, in place, for native bfloat16 as pairs of keys at the place of the even one divided by two.
  // Returns the sum of the weights of each query, of which dropout takes some away only then.
  template <bool kDrops>
  Vector weigh(Range keys, int i, Vector shift) {
    Vector total = {};
    float* scores = scores_ + i;
    const int64_t row = t_;  // as in scale_and_mask
    const auto dropped = [&](Vector weight, int64_t j) { return kDrops ? this->drop(weight, kept_, j, i) : weight; };
#ifdef __AVX512BF16__
    if constexpr (Kind::kPairs) {
      for (int64_t j = keys.begin; j < keys.end; j += 2) {
        const Vector even = exp2(load(scores + j * row) - shift), odd = exp2(load(scores + (j + 1) * row) - shift);
        total += even + odd;
        store(scores + j / 2 * row, paired(dropped(even, j), dropped(odd, j + 1)));
      }
      return total;
    }
#endif
    for (int64_t j = keys.begin; j < keys.end; ++j) {
      const Vector weight = exp2(load(scores + j * row) - shift);
      total += weight;
      store(scores + j * row, dropped(weight, j));
    }
    return total;
  }

  void scale_sums(int g) {
    for (int i = g * kGroup; i < std::min(count_, (g + 1) * kGroup); ++i) {
      float* sums = sums_ + static_cast<int64_t>(i) * value_width_;
      const Vector factor = splat(factor_[i]);
      for (int d = 0; d < value_width_; d += kLanes) store(sums + d, load(sums + d) * factor);
    }
  }

  // Adds the weighted values of the step to the queries of groups [first, past), which read the same keys.
  void add_values(int first, int past) {
    const int queries = std::min(count_, past * kGroup) - first * kGroup;
    if (queries <= 0) return;
    for (int r = 0; r < n_step_ranges_[first]; ++r) {
      const int64_t begin = Kind::units(step_ranges_[first][r].begin), end = Kind::units(step_ranges_[first][r].end);
      product<typename Kind::Units, true>(queries, value_width_, static_cast<int>(end - begin),
                                          {scores_ + begin * t_ + first * kGroup, 1, t_}, values_ + begin * value_width_,
                                          value_width_, sums_ + static_cast<int64_t>(first) * kGroup * value_width_,
                                          value_width_);
    }
  }

  float *scores_, *values_, *sums_, *step_highest_;
  uint64_t* kept_ = nullptr;  // by key of the step, which queries dropout lets read it
  Range step_ranges_[kMostGroups][kKeysPerStep / kGroup];  // by group of queries, the keys of the step that it reads
  int n_step_ranges_[kMostGroups] = {};
};

}  // namespace

// Backward through one row of tiles: the scores are computed again, from the log-sum-exp (Dao 2023).

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "term_row.hpp"

namespace {

// Where the gradients of keys and values are added up: [n_keys, dim] in natural order, or those of one tile apart.
struct KeySums {
  float *keys, *values;  // null: not asked for
  bool is_tile;
};

template <class Kind>
class BackwardRow : public TermRow<Kind> {
  using Base = TermRow<Kind>;
  using Base::count_, Base::first_, Base::groups_, Base::p_, Base::pass_, Base::query_ranges_, Base::ranges_,
      Base::row_width_, Base::rows_, Base::t_, Base::value_row_width_, Base::value_width_, Base::width_;
  using Units = typename Kind::Units;

 public:
  BackwardRow(const Problem& p, const Pass& pass, const float* deltas, const TermTables<Kind>& tables, Scratch& scratch)
      : Base(p, pass, tables, scratch), deltas_(deltas) {
    const int64_t t = t_;
    lse_ = this->highest_;
    delta_ = this->total_;
    scores_ = scratch.take<float>(t * t);
    grad_scores_ = scratch.take<float>(t * t);
    narrow_ = scratch.take<float>(t * t);
    grad_out_ = scratch.take<float>(t * value_width_);
    query_rows_ = scratch.take<float>(t * width_);
    grad_out_rows_ = scratch.take<float>(t * value_width_);
    key_pairs_ = scratch.take<float>(t * width_);
    value_rows_ = scratch.take<float>(t * value_width_);
    grad_query_ = scratch.take<float>(t * width_);
    grad_key_ = scratch.take<float>(t * std::max(width_, value_width_));
    if (this->has_dropout()) kept_ = scratch.take<uint64_t>(t * p.words);
  }

  // Gradients of the terms' tables go to `term_sums`.
  void begin(int64_t batch, int64_t head, int64_t row, const TermSums& term_sums) {
    term_sums_ = term_sums;
    Base::begin(batch, head, row);
    if (p_.grad_k) keep_as_tokens(rows_, row_width_, width_, p_.dim, query_rows_);
    const auto g = this->tokens(p_.grad_out, head, pass_.query_index, first_, count_, p_.value_dim);
    pack_rows<Kind>(g, rows_, value_row_width_);
    transpose(rows_, value_row_width_, count_, Kind::units(p_.value_dim), grad_out_, t_);
    if (p_.grad_v) keep_as_tokens(rows_, value_row_width_, value_width_, p_.value_dim, grad_out_rows_);
    for (int i = 0; i < t_; ++i) {
      lse_[i] = kInfinity;
      delta_[i] = 0;
    }
    for (int i = 0; i < count_; ++i) {
      const int64_t at = (batch * p_.heads + head) * p_.n_queries + this->query(i);
      if (p_.lse[at] == -kInfinity) continue;
      lse_[i] = p_.lse[at] * kLog2E;
      if (needs_scores()) delta_[i] = deltas_[at];
    }
    std::fill(grad_query_, grad_query_ + static_cast<int64_t>(t_) * width_, 0.0f);
  }

  // Adds a tile's share to the gradients that are asked for.
  void read(int64_t column, int32_t kind, const KeySums& sums) {
    const int n_keys = this->keys_in(column);
    Allowed may = this->allowed(column, kind, n_keys);
    if (this->has_terms() && !may.nothing) this->enter(column, n_keys, may);
    if (may.nothing) return;
    this->score(column, may, n_keys, scores_);
    if (needs_scores()) multiply_values(column, may, n_keys);
    if (this->has_terms())
      differentiate_terms(column, may, n_keys);
    else
      for (int g = 0; g < groups_; ++g) differentiate_softmax(may, g);
    clear_unread_groups(n_keys);
    const auto add = [&](const float* weights, const float* tokens, int width, int64_t dim, float* to) {
      if (to) add_to_keys(column, n_keys, as_rows(weights, n_keys), tokens, width, dim, to, sums.is_tile);
    };
    add(scores_, grad_out_rows_, value_width_, p_.value_dim, sums.values);
    add(grad_scores_, query_rows_, width_, p_.dim, sums.keys);
    if (p_.grad_q) add_to_queries(n_keys);
  }

  // The gradient of the row's queries, after its last tile.
  Matrix finish() {
    if (this->relative_) this->relative_->finish(count_, relative_gradients());
    return {grad_query_, width_, 1};
  }

 private:
  bool needs_scores() const { return needs_score_gradients(p_); }

  // The gradients of the weights.
  void multiply_values(int64_t column, const Allowed& may, int n_keys) {
    const auto v = this->tokens(p_.v, this->kv_head(), pass_.key_index, column * t_, n_keys, p_.value_dim);
    const Matrix rows = rows_of<Kind>(v, !may.has_unread, value_rows_, value_row_width_);
    this->clear_unread(may, n_keys, value_rows_, value_row_width_);
    this->multiply_live(rows, n_keys, Kind::units(p_.value_dim), grad_out_, grad_scores_);
  }

  // Rows of the tile as B, units along the tokens; tokens beyond count_ are 0.
  void keep_as_tokens(const float* rows, int row_width, int width, int64_t dim, float* to) const {
    if constexpr (Kind::kPairs) {
      pair_tokens({rows, row_width, 1}, count_, static_cast<int>(dim), to, width);
      const int pairs = (count_ + 1) / 2;
      std::fill(to + static_cast<int64_t>(pairs) * width, to + static_cast<int64_t>(t_ / 2) * width, 0.0f);
    } else {
      std::memcpy(to, rows, static_cast<int64_t>(count_) * width * sizeof(float));
      std::fill(to + static_cast<int64_t>(count_) * width, to + static_cast<int64_t>(t_) * width, 0.0f);
    }
  }

  // scores -> weights, gradients of weights -> gradients of scores, in place.
  void differentiate_softmax(const Allowed may, int g) {
    const Vector scale = splat(p_.scale * kLog2E), outer = splat(p_.scale);
    const Range keys = ranges_[g];  // local, as is all that the inner loop asks: a member would be read in every turn
    const int64_t row = t_;
    float *const all_scores = scores_, *const all_grads = grad_scores_;
    for (int i = g * kGroup; i < (g + 1) * kGroup; i += kLanes) {
      const Vector lse = load(lse_ + i), delta = load(delta_ + i);
      for (int j = keys.begin; j < keys.end; ++j) {
        float *scores = all_scores + j * row + i, *grad = all_grads + j * row + i;
        Vector x = load(scores) * scale;
        if (may.bits) x = forbid(x, may.lanes(j, i));
        const Vector weight = exp2(x - lse);
        store(scores, weight);
        store(grad, weight * (load(grad) - delta) * outer);
      }
    }
  }

  // The same where there are terms; adds to the gradients of their tables.
  void differentiate_terms(int64_t column, const Allowed& may, int n_keys) {
    this->add_relative(may, n_keys, scores_);
    if (kept_) this->draw(column, n_keys, kept_);
    this->with_terms([&](auto bias, auto is_capped) {
      for (int g = 0; g < groups_; ++g) differentiate_group<bias.value, is_capped.value>(may, g);
    });
    if (term_sums_.bias) this->add_by_distance(narrow_, term_sums_.bias);
    if (this->relative_ && (p_.grad_q || term_sums_.relative))
      this->take_relative(may, n_keys, grad_scores_, relative_gradients());
  }

  // Gradients of the scores, before their terms scaled them, go to narrow_, where a bias wants them.
  template <Bias kBias, bool kIsCapped>
  void differentiate_group(const Allowed& may, int g) {
    const Vector scale = splat(p_.scale);
    for (int i = g * kGroup; i < (g + 1) * kGroup; i += kLanes) {
      const Vector lse = load(lse_ + i), delta = load(delta_ + i);
      for (int j = ranges_[g].begin; j < ranges_[g].end; ++j) {
        const int64_t at = static_cast<int64_t>(j) * t_ + i;
        Vector slope = splat(1), x = this->template score_of<kBias, kIsCapped>(load(scores_ + at), j, i, &slope);
        if (may.bits) x = forbid(x, may.lanes(j, i));
        const Vector weight = exp2(x - lse), grad = load(grad_scores_ + at);
        store(scores_ + at, kept_ ? this->drop(weight, kept_, j, i) : weight);
        const Vector grad_score = weight * ((kept_ ? this->drop(grad, kept_, j, i) : grad) - delta);
        if (term_sums_.bias) store(narrow_ + at, grad_score);
        store(grad_scores_ + at, grad_score * (kIsCapped ? slope * scale : scale));
      }
    }
  }

  typename RelativeRow<Kind>::Gradients relative_gradients() const {
    return {p_.grad_q ? grad_query_ : nullptr, term_sums_.relative};
  }

  // What lies between the queries that read a group of keys, but does not read it itself, becomes 0.
  void clear_unread_groups(int n_keys) {
    for (int k = 0; k < this->key_groups_; ++k)
      for (int i = query_ranges_[k].begin; i < query_ranges_[k].end; i += kGroup)
        if (!this->reads(i / kGroup, k)) clear_group(k, i / kGroup, n_keys);
  }

  void clear_group(int k, int g, int n_keys) {
    for (int j = k * kGroup; j < std::min(n_keys, (k + 1) * kGroup); ++j) {
      const int64_t at = static_cast<int64_t>(j) * t_ + g * kGroup;
      std::fill(scores_ + at, scores_ + at + kGroup, 0.0f);
      std::fill(grad_scores_ + at, grad_scores_ + at + kGroup, 0.0f);
    }
  }

  // [key][query] as A with units along the queries.
  Matrix as_rows(const float* from, int n_keys) {
#ifdef __AVX512BF16__
    if constexpr (Kind::kPairs) {
      for (int j = 0; j < n_keys; ++j) narrow_row(from + j * t_, t_, narrow_ + j * t_ / 2);
      return {narrow_, t_ / 2, 1};
    }
#endif
    return {from, t_, 1};
  }

  // Adds the product of the gradients of scores with the tile's keys to the queries.
  void add_to_queries(int n_keys) {
    const float* keys = this->key_rows_.data;
    int64_t key_row = this->key_rows_.row;
#ifdef __AVX512BF16__
    if constexpr (Kind::kPairs) {
      if (n_keys % 2) std::fill(grad_scores_ + n_keys * t_, grad_scores_ + (n_keys + 1) * t_, 0.0f);
      for (int j = 0; j < (n_keys + 1) / 2; ++j)
        narrow_pair(grad_scores_ + 2 * j * t_, grad_scores_ + (2 * j + 1) * t_, t_, grad_scores_ + j * t_);
      pair_tokens(this->key_rows_, n_keys, static_cast<int>(p_.dim), key_pairs_, width_);
      keys = key_pairs_;
      key_row = width_;
    }
#endif
    for_runs(ranges_, groups_, [&](int first, int past, Range read) {
      const int queries = std::min(count_, past * kGroup) - first * kGroup;
      const int64_t begin = Kind::units(read.begin), end = Kind::units(read.end);
      if (queries > 0)
        product<Units, true>(queries, width_, static_cast<int>(end - begin),
                             {grad_scores_ + begin * t_ + first * kGroup, 1, t_}, keys + begin * key_row, key_row,
                             grad_query_ + static_cast<int64_t>(first) * kGroup * width_, width_);
    });
  }

  // Adds the product of a tile's weights, as A, with the tokens of its queries to the tile's keys in `to`.
  void add_to_keys(int64_t column, int n_keys, Matrix weights, const float* tokens, int width, int64_t dim, float* to,
                   bool is_tile) {
    const bool in_place = dim == width && (is_tile || this->are_stretch(column, n_keys));
    float* sums = in_place ? to + (is_tile ? 0 : this->key(column, 0) * dim) : grad_key_;
    if (!in_place) std::fill(sums, sums + static_cast<int64_t>(n_keys) * width, 0.0f);
    for_runs(query_ranges_, this->key_groups_, [&](int first, int past, Range queries) {
      const int keys = std::min(n_keys, past * kGroup) - first * kGroup;
      const int64_t begin = Kind::units(queries.begin), end = Kind::units(queries.end);
      const Matrix a = {weights.data + first * kGroup * weights.row + begin, weights.row, 1};
      product<Units, true>(keys, width, static_cast<int>(end - begin), a, tokens + begin * width, width,
                           sums + static_cast<int64_t>(first) * kGroup * width, width);
    });
    if (in_place) return;
    for (int j = 0; j < n_keys; ++j) {
      float* row = to + (is_tile ? j : this->key(column, j)) * dim;
      const float* from = grad_key_ + static_cast<int64_t>(j) * width;
      for (int64_t d = 0; d < dim; ++d) row[d] += from[d];
    }
  }

  const float* deltas_;  // [batch * heads, n_queries]
  float *lse_, *delta_, *scores_, *grad_scores_, *narrow_, *grad_out_, *query_rows_, *grad_out_rows_, *key_pairs_,
      *value_rows_, *grad_query_, *grad_key_;
  uint64_t* kept_ = nullptr;  // by key of the tile, which queries dropout lets read it
  TermSums term_sums_ = {};
};

}  // namespace

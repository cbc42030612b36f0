// What terms do to the scores of a row of tiles (kernels/terms/terms.py):
//
//     score = softcap(scale * q . (k + p(d))) + bias(d),  d = position of the query - position of the key
//
// A row of a call without terms holds nothing of this and asks once per tile.

#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "philox.hpp"
#include "relative.hpp"
#include "row.hpp"
#include "terms.hpp"

namespace {

// How the bias of kLanes queries and a key is found: in a run where the queries are neighbours, else each.
enum class Bias { kNone, kRun, kEach };

// Where the gradients of tables are added up by one thread for one query head: that of the bias by place, as
// TermTables::bias has them, and that of the relative positions, as TermTables::rows has them; null: not asked for.
struct TermSums {
  float *bias, *relative;
};

template <class Kind>
class TermRow : public Row<Kind> {
  using Base = Row<Kind>;

 protected:
  using Base::batch_, Base::bits_, Base::count_, Base::first_, Base::groups_, Base::head_, Base::p_, Base::pass_,
      Base::ranges_, Base::t_;

 public:
  static int64_t scratch(const Problem& p, bool backward) {
    const int64_t bytes = Base::scratch(p, backward), t = p.tile;
    if (!p.terms) return bytes;
    const int64_t kept = drops(*p.terms) ? 2 * p.words * (std::max<int64_t>(kKeysPerStep, t) + 1) : 0;
    const int64_t relative = p.terms->relative ? RelativeRow<Kind>::scratch(p) : 0;
    return bytes + (4 * t + kept + relative + 256) * static_cast<int64_t>(sizeof(float));
  }

  TermRow(const Problem& p, const Pass& pass, const TermTables<Kind>& tables, Scratch& scratch)
      : Base(p, pass, scratch), terms_(p.terms), tables_(tables) {
    if (!terms_) return;
    query_steps_ = scratch.take<int32_t>(t_);
    query_positions_ = scratch.take<int32_t>(t_);
    key_places_ = scratch.take<int64_t>(t_);
    if (terms_->relative) relative_.emplace(p, tables, scratch);
  }

  void begin(int64_t batch, int64_t head, int64_t row) {
    Base::begin(batch, head, row);
    if (!terms_) return;
    are_queries_neighbours_ = true;
    for (int i = 0; i < t_; ++i) {
      const int64_t query = this->query(std::min(i, count_ - 1));
      query_steps_[i] = static_cast<int32_t>(query - this->query(0));
      query_positions_[i] = static_cast<int32_t>(p_.query_offset + query);
      are_queries_neighbours_ &= i >= count_ || query_steps_[i] == i;
    }
    if (terms_->bias) bias_ = tables_.bias(head);
    if (relative_) relative_->begin(this->tokens(p_.q, head, pass_.query_index, first_, count_, p_.dim));
  }

 protected:
  bool has_terms() const { return terms_; }
  bool has_dropout() const { return terms_ && drops(*terms_); }

  // To be called before a tile is computed: finds its distances, and takes what the bias forbids out of `may`.
  void enter(int64_t column, int n_keys, Allowed& may) {
    if (!terms_->bias && !relative_) return;
    // The distance of query 0 from the last key of all has place 0.
    const int64_t first = this->query(0) + p_.n_keys - 1;
    are_keys_neighbours_ = true;
    for (int j = 0; j < n_keys; ++j) {
      key_places_[j] = first - this->key(column, j);
      are_keys_neighbours_ &= key_places_[j] == key_places_[0] - j;
    }
    if (tables_.forbids(head_)) forbid_by_bias(n_keys, may);
  }

  // Raw scores -> with relative positions.
  void add_relative(const Allowed& may, int n_keys, float* scores) {
    if (!relative_) return;
    if (are_neighbours())
      relative_->add(pairs(n_keys), distance(0, 0), scores);
    else
      relative_->add_by_pairs(pairs(n_keys), read_distance(may), scores);
  }

  void take_relative(const Allowed& may, int n_keys, const float* grad_scores,
                     const typename RelativeRow<Kind>::Gradients& to) {
    if (are_neighbours())
      relative_->take(pairs(n_keys), distance(0, 0), grad_scores, to);
    else
      relative_->take_by_pairs(pairs(n_keys), read_distance(may), grad_scores, to);
  }

  // Calls body(bias, is_capped) with the constants that say which terms scores have.
  template <class Body>
  void with_terms(Body body) const {
    const auto capped = [&](auto bias) {
      if (terms_->softcap > 0)
        body(bias, std::true_type());
      else
        body(bias, std::false_type());
    };
    if (!terms_->bias)
      capped(std::integral_constant<Bias, Bias::kNone>());
    else if (are_queries_neighbours_)
      capped(std::integral_constant<Bias, Bias::kRun>());
    else
      capped(std::integral_constant<Bias, Bias::kEach>());
  }

  // The scores of queries i, i + 1, ... and key j in powers of two, of what is raw; `slope`: by how much they grow with
  // it, apart from scale.
  template <Bias kBias, bool kIsCapped>
  Vector score_of(Vector raw, int j, int i, Vector* slope) const {
    Vector x;
    if constexpr (kIsCapped) {
      const Vector share = tanh(raw * splat(p_.scale / terms_->softcap));
      *slope = splat(1) - share * share;
      x = share * splat(terms_->softcap * kLog2E);
    } else {
      x = raw * splat(p_.scale * kLog2E);
    }
    if constexpr (kBias != Bias::kNone) x += bias_of<kBias>(j, i);
    return x;
  }

  // One bit per pair of a tile, [key][words]: whether dropout keeps it.
  void draw(int64_t column, int n_keys, uint64_t* kept) const {
    std::fill_n(kept, n_keys * p_.words, 0);
    Kept keeps(*terms_, batch_, head_);
    for (int i = 0; i < t_; i += kLanes) {
      const Range keys = ranges_[i / kGroup];
      keeps.begin(load_integers(query_positions_ + i));
      for (int j = keys.begin; j < keys.end; ++j)
        kept[j * p_.words + i / 64] |= static_cast<uint64_t>(keeps(this->key(column, j))) << (i % 64);
    }
  }

  // Lanes of weights, or of their gradients, that dropout keeps are divided by their share, the others become 0.
  Vector drop(Vector x, const uint64_t* kept, int64_t j, int i) const {
    const uint32_t bits = static_cast<uint32_t>(kept[j * p_.words + i / 64] >> (i % 64));
    return keep(x * splat(terms_->kept_factor), bits & ((1u << kLanes) - 1));
  }

  // Adds the gradients of a tile's scores [key][query], those of its ranges, by distance.
  void add_by_distance(const float* grad_scores, float* sums) const {
    for (int i = 0; i < t_; i += kLanes) {
      const Range keys = ranges_[i / kGroup];
      const float* gradients = grad_scores + i;
      if (are_neighbours()) {
        if (keys.begin < keys.end) add_diagonals(keys, gradients, sums + key_places_[0] + i);
        continue;
      }
      for (int j = keys.begin; j < keys.end; ++j) {
        const float* from = gradients + static_cast<int64_t>(j) * t_;
        float* to = sums + key_places_[j];
        if (are_queries_neighbours_)
          store(to + i, load(to + i) + load(from));
        else
          for (int lane = 0; lane < kLanes && i + lane < count_; ++lane) to[query_steps_[i + lane]] += from[lane];
      }
    }
  }

  std::optional<RelativeRow<Kind>> relative_;

 private:
  static Integers load_integers(const int32_t* from) {
    return reinterpret_cast<Integers>(load(reinterpret_cast<const float*>(from)));
  }

  bool are_neighbours() const { return are_queries_neighbours_ && are_keys_neighbours_; }
  Pairs pairs(int n_keys) const { return {ranges_, groups_, count_, n_keys}; }
  int64_t distance(int i, int j) const { return key_places_[j] + query_steps_[i] + p_.query_offset - (p_.n_keys - 1); }

  // The distance of a pair, -1 of one that is not read.
  auto read_distance(const Allowed& may) const {
    return [this, &may](int i, int j) {
      const bool is_read = !may.bits || may.bits[j * p_.words + i / 64] >> (i % 64) & 1;
      return is_read ? distance(i, j) : -1;
    };
  }

  template <Bias kBias>
  Vector bias_of(int j, int i) const {
    if constexpr (kBias == Bias::kRun) return load(bias_ + key_places_[j] + i);
    return gather(bias_ + key_places_[j], load_integers(query_steps_ + i));
  }

  // A key whose bias is -infinity for every query of the tile is not read: what it holds may be NaN.
  void forbid_by_bias(int n_keys, Allowed& may) {
    if (are_neighbours()) {
      const float *begin = bias_ + key_places_[n_keys - 1], *end = bias_ + key_places_[0] + count_;
      bool any = false;
      for (const float* at = begin; at < end; ++at) any |= *at == -kInfinity;
      if (!any) return;
    }
    uint64_t any = 0;
    for (int j = 0; j < n_keys; ++j)
      for (int w = 0; w < p_.words; ++w) {
        uint64_t& bits = bits_[j * p_.words + w];
        const uint64_t before = may.bits ? may.bits[j * p_.words + w] : ~uint64_t{0};
        bits = before & finite_bits(j, 64 * w);
        any |= bits;
      }
    may.bits = bits_;
    may.has_unread = true;
    may.nothing = any == 0;
  }

  // One bit for each of 64 queries: whether its bias for a key is finite. Those that pad the tile have none.
  uint64_t finite_bits(int j, int first) const {
    uint64_t bits = 0;
    for (int i = first; i < std::min(count_, first + 64); i += kLanes) {
      const Vector bias = are_queries_neighbours_ ? bias_of<Bias::kRun>(j, i) : bias_of<Bias::kEach>(j, i);
      bits |= static_cast<uint64_t>(bits_of(bias != splat(-kInfinity))) << (i - first);
    }
    const int left = count_ - first;
    return left >= 64 ? bits : left <= 0 ? 0 : bits & ((uint64_t{1} << left) - 1);
  }

  // Sums along diagonals: with each key the distances of the lanes move down by one, and that of the highest lane is
  // finished. `sums`: by place of the lowest query and key 0.
  void add_diagonals(Range keys, const float* gradients, float* sums) const {
    Vector open = {}, done = {};
    const auto put = [&](int64_t place, Vector x) { store(sums + place, load(sums + place) + x); };
    for (int j = keys.begin; j < keys.end; ++j) {
      open += load(gradients + static_cast<int64_t>(j) * t_);
      done = shift_in(done, open);
      open = shift_in(open, Vector{});
      if ((j + 1) % kLanes && j + 1 < keys.end) continue;
      put(kLanes - 1 - j, done);
      done = Vector{};
    }
    put(-keys.end, open);
  }

  const Terms* terms_;
  const TermTables<Kind>& tables_;
  const float* bias_ = nullptr;
  int32_t *query_steps_ = nullptr, *query_positions_ = nullptr;  // from query 0 of the row, and in the sequence
  int64_t* key_places_ = nullptr;                                // of the pairs of query 0 with the keys of the tile
  bool are_queries_neighbours_ = false, are_keys_neighbours_ = false;
};

}  // namespace

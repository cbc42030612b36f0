// How much of their attention runs of queries give to runs of keys, tile by tile, from the log-sum-exp that is known.

#pragma once

#include <algorithm>
#include <cstdint>

#include "batch.hpp"
#include "parallel.hpp"
#include "row.hpp"

namespace {

template <class Kind>
class MassRow : public Row<Kind> {
  using Base = Row<Kind>;
  using Base::count_, Base::groups_, Base::p_, Base::pass_, Base::ranges_, Base::t_;

 public:
  static int64_t scratch(const Problem& p) { return Base::scratch(p, false); }

  MassRow(const Problem& p, const Pass& pass, int run, Scratch& scratch) : Base(p, pass, scratch), run_(run) {
    scores_ = scratch.take<float>(static_cast<int64_t>(t_) * t_);
    lse_ = scratch.take<float>(t_);
  }

  void begin(int64_t batch, int64_t head, int64_t row) {
    Base::begin(batch, head, row);
    for (int i = 0; i < t_; ++i) {  // a query that reads nothing, or is left out, gives nothing
      const float lse = i < count_ ? p_.lse[this->output(i)] : kInfinity;
      lse_[i] = lse == -kInfinity ? kInfinity : lse * kLog2E;
    }
  }

  // Adds the weights of one tile to sums [t / run, t / run], of runs of queries by runs of keys.
  void read(int64_t column, int32_t kind, float* to) {
    const int n_keys = this->keys_in(column);
    const bool is_cut = p_.key_mask || p_.segments;
    const Allowed may = this->allowed(column, is_cut ? ~kind : kind, n_keys);
    if (may.nothing) return;
    this->score(column, may, n_keys, scores_);
    for (int g = 0; g < groups_; ++g)
      for (int i = g * kGroup; i < std::min(count_, (g + 1) * kGroup); i += kLanes) add(may, g, i, to);
  }

 private:
  void add(const Allowed& may, int g, int i, float* to) const {
    const Vector lse = load(lse_ + i), scale = splat(p_.scale * kLog2E);
    const uint32_t here = count_ - i >= kLanes ? ~0u : (1u << (count_ - i)) - 1;
    for (int j = ranges_[g].begin; j < ranges_[g].end;) {
      const int run = j / run_, past = std::min(ranges_[g].end, (run + 1) * run_);
      Vector total = {};
      for (; j < past; ++j) {
        const Vector x = load(scores_ + static_cast<int64_t>(j) * t_ + i) * scale - lse;
        total += exp2(forbid(x, may.bits ? may.lanes(j, i) & here : here));
      }
      to[i / run_ * (t_ / run_) + run] += sum_of(total);
    }
  }

  const int run_;
  float *scores_, *lse_;
};

// Of one pass: sums [batch, heads, entries, t / run, t / run] of the entries of each head's list.
inline void add_mass(const Problem& p, const Mass& mass) {
  const Pass& pass = p.passes[mass.pass];
  const int64_t of_entry = (p.tile / mass.run) * (p.tile / mass.run);
  in_parallel(p, p.batch * p.heads * pass.n_rows, MassRow<Float32>::scratch(p), [&](int64_t task, Scratch& scratch) {
    const int64_t unit = task / pass.n_rows, row = task % pass.n_rows;
    const int64_t* offsets = offsets_of(pass, unit % p.heads);
    if (!offsets || offsets[row] == offsets[row + 1]) return;
    MassRow<Float32> reader(p, pass, static_cast<int>(mass.run), scratch);
    reader.begin(unit / p.heads, unit % p.heads, row);
    for (int64_t at = offsets[row]; at < offsets[row + 1]; ++at)
      reader.read(pass.columns[at], pass.kinds[at], mass.to + (unit * mass.entries + at) * of_entry);
  });
}

}  // namespace

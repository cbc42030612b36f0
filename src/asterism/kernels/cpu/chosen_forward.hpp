// The forward pass of attention to blocks that queries chose (chosen.hpp).

#pragma once

#include "chosen.hpp"

namespace {

constexpr int64_t kLongestForward = 8192;  // queries of a stretch, whose sums are to stay in a cache

template <class Kind>
class ForwardChosen {
 public:
  ForwardChosen(const Problem& p, const Chosen& c) : p_(p), c_(c), stretch_(stretch_of(p, kLongestForward)) {}

  void run() {
    const int64_t stretches = (p_.n_queries + stretch_ - 1) / stretch_;
    in_parallel(p_, p_.batch * p_.kv_heads * stretches, scratch(), [&](int64_t i, Scratch& scratch) {
      const int64_t key_head = i / stretches, first = i % stretches * stretch_;
      const ChosenTask task = {key_head / p_.kv_heads, key_head % p_.kv_heads, first,
                               std::min(p_.n_queries, first + stretch_)};
      Worker(*this, scratch).run(task);
    });
  }

 private:
  int64_t found_floats() const {
    return (padded(p_.value_dim) + 2) * stretch_ * (p_.heads / p_.kv_heads);
  }

  int64_t scratch() const {
    const int64_t floats = found_floats() + kGathered * padded(p_.value_dim) + 256;
    return ChosenLists::scratch(p_, c_, stretch_) + ChosenTile<Kind>::scratch(p_) + floats * static_cast<int64_t>(sizeof(float));
  }

  class Worker {
   public:
    Worker(const ForwardChosen& whole, Scratch& scratch)
        : p_(whole.p_), c_(whole.c_), lists_(p_, c_, whole.stretch_, scratch), tile_(p_, scratch), stretch_(whole.stretch_) {
      const int64_t rows = stretch_ * (p_.heads / p_.kv_heads);
      sums_ = scratch.take<float>(rows * tile_.value_width);
      highest_ = scratch.take<float>(rows);
      total_ = scratch.take<float>(rows);
      weighted_ = scratch.take<float>(kGathered * tile_.value_width);
    }

    ASTERISM_ONE_COPY void run(const ChosenTask& task) {
      for_members(p_, c_, task.kv_head, [&](const Members& members) {
        for (int64_t head = members.first; head < members.past; ++head)
          begin(task, head, (head - members.first) * stretch_);
        lists_.fill(task, members.choice, 0, lists_.tiles());
        for (int64_t tile = 0; tile < lists_.tiles(); ++tile) {
          if (lists_.begin(tile) == lists_.end(tile)) continue;
          tile_.take(task, tile, false);
          for (int64_t head = members.first; head < members.past; ++head)
            for (int64_t at = lists_.begin(tile); at < lists_.end(tile); at += kGathered)
              read(task, head, (head - members.first) * stretch_, at, std::min(lists_.end(tile), at + kGathered));
        }
        for (int64_t head = members.first; head < members.past; ++head)
          write(task, head, (head - members.first) * stretch_);
      });
    }

   private:
    // What the queries of a head, from row `before` on, have read so far.
    void begin(const ChosenTask& task, int64_t head, int64_t before) {
      for (int64_t query = task.first; query < task.past; ++query) {
        const int64_t row = before + query - task.first, at = (task.batch * p_.heads + head) * p_.n_queries + query;
        float* sums = sums_ + row * tile_.value_width;
        load_output<Kind>(p_, at, sums);
        std::fill(sums + p_.value_dim, sums + tile_.value_width, 0.0f);
        highest_[row] = p_.lse[at] * kLog2E;
        total_[row] = p_.lse[at] == -kInfinity ? 0 : 1;
      }
    }

    // Entries [begin, end) of the list read the tile; `before` rows belong to other heads.
    void read(const ChosenTask& task, int64_t head, int64_t before, int64_t begin, int64_t end) {
      const int rows = static_cast<int>(end - begin), t = static_cast<int>(p_.tile);
      for (int i = 0; i < rows; ++i) tile_.gather(task.batch, head, lists_.query(begin + i), i);
      tile_.score(lists_, begin, end);
      float factors[kGathered];
      for (int i = 0; i < rows; ++i) {
        const int64_t row = before + lists_.query(begin + i) - task.first;
        factors[i] = exponentiate(tile_.scores + i * t, row);
      }
      product<FloatUnits, false>(rows, tile_.value_width, t, {tile_.scores, t, 1}, tile_.used_values, tile_.value_width,
                                 weighted_, tile_.value_width);
      for (int i = 0; i < rows; ++i) {
        float* sums = sums_ + (before + lists_.query(begin + i) - task.first) * tile_.value_width;
        const Vector factor = splat(factors[i]);
        for (int d = 0; d < tile_.value_width; d += kLanes)
          store(sums + d, load(sums + d) * factor + load(weighted_ + i * tile_.value_width + d));
      }
    }

    // Scores of a row become weights relative to its highest score so far; what the sums before are multiplied by.
    float exponentiate(float* scores, int64_t row) {
      const int t = static_cast<int>(p_.tile);
      float most = highest_of(scores, t);
      most = most > highest_[row] ? most : highest_[row];
      const Vector shift = splat(most == -kInfinity ? 0 : most);
      Vector sum = {};
      for (int j = 0; j < t; j += kLanes) {
        const Vector weight = exp2(load(scores + j) - shift);
        store(scores + j, weight);
        sum += weight;
      }
      const float factor = highest_[row] == -kInfinity ? 0 : std::exp2(highest_[row] - most);
      total_[row] = total_[row] * factor + sum_of(sum);
      highest_[row] = most;
      return factor;
    }

    void write(const ChosenTask& task, int64_t head, int64_t before) {
      for (int64_t query = task.first; query < task.past; ++query) {
        const int64_t row = before + query - task.first, at = (task.batch * p_.heads + head) * p_.n_queries + query;
        const float inverse = total_[row] == 0 ? 0 : 1 / total_[row];
        float* sums = sums_ + row * tile_.value_width;
        for (int64_t d = 0; d < p_.value_dim; ++d) sums[d] *= inverse;
        store_output<Kind>(p_, at, sums);
        p_.lse[at] = total_[row] == 0 ? -kInfinity : (highest_[row] + std::log2(total_[row])) * kLn2;
      }
    }

    const Problem& p_;
    const Chosen& c_;
    ChosenLists lists_;
    ChosenTile<Kind> tile_;
    const int64_t stretch_;
    float *sums_, *highest_, *total_, *weighted_;  // by member and query
  };

  const Problem& p_;
  const Chosen& c_;
  const int64_t stretch_;
};

}  // namespace

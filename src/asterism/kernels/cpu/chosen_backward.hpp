// The backward pass of attention to blocks that queries chose (chosen.hpp).
//
// The gradients of a tile's keys and values are summed while the tile is there; those of a query lie in memory in between.
// A key head is cut into a few runs of stretches, by its shape alone, each with sums of its own for the keys, which are
// added in their order.

#pragma once

#include <vector>

#include "chosen.hpp"

namespace {

constexpr int64_t kRunsInAll = 32, kMostRuns = 4;  // of all key heads, about; of one

template <class Kind>
class BackwardChosen {
 public:
  BackwardChosen(const Problem& p, const Chosen& c)
      : p_(p), c_(c), stretch_(stretch_of(p)), stretches_((p.n_queries + stretch_ - 1) / stretch_) {
    const int64_t heads = p.batch * p.kv_heads;
    runs_ = std::max<int64_t>(1, std::min({kMostRuns, (kRunsInAll + heads - 1) / heads, stretches_}));
    sums_.resize(heads * (runs_ - 1));
  }

  void run() {
    in_parallel(p_, p_.batch * p_.kv_heads * runs_, scratch(), [&](int64_t i, Scratch& scratch) {
      const int64_t key_head = i / runs_, number = i % runs_;
      Worker worker(*this, scratch, key_head, place(key_head, number));
      for (int64_t at = stretches_ * number / runs_; at < stretches_ * (number + 1) / runs_; ++at)
        worker.run({key_head / p_.kv_heads, key_head % p_.kv_heads, at * stretch_,
                    std::min(p_.n_queries, (at + 1) * stretch_)});
    });
    if (runs_ > 1) add_up();
  }

 private:
  struct Place {
    float *grad_k, *grad_v;
  };

  int64_t key_floats() const { return p_.n_keys * p_.dim; }
  int64_t value_floats() const { return p_.n_keys * p_.value_dim; }

  // Where a run adds up the gradients of a key head, all 0.
  Place place(int64_t key_head, int64_t number) {
    if (number > 0) {
      Sums& sums = sums_[key_head * (runs_ - 1) + number - 1];
      sums.reset(key_floats() + value_floats());
      return {sums.get(), sums.get() + key_floats()};
    }
    const Place first = {c_.grad_k + key_head * key_floats(), c_.grad_v + key_head * value_floats()};
    std::fill_n(first.grad_k, key_floats(), 0.0f);
    std::fill_n(first.grad_v, value_floats(), 0.0f);
    return first;
  }

  void add_up() {
    in_parallel(p_, p_.batch * p_.kv_heads, 0, [&](int64_t key_head, Scratch&) {
      for (int64_t number = 1; number < runs_; ++number) {
        const float* sums = sums_[key_head * (runs_ - 1) + number - 1].get();
        add(sums, key_floats(), c_.grad_k + key_head * key_floats());
        add(sums + key_floats(), value_floats(), c_.grad_v + key_head * value_floats());
      }
    });
  }

  static void add(const float* from, int64_t n, float* to) {
    for (int64_t i = 0; i < n; ++i) to[i] += from[i];
  }

  int64_t scratch() const {
    const int64_t t = p_.tile, d = padded(p_.dim), dv = padded(p_.value_dim);
    const int64_t floats = kGathered * (dv + t + d) + t * (d + dv) + 512;
    return ChosenLists::scratch(p_, c_) + ChosenTile<Kind>::scratch(p_) + floats * static_cast<int64_t>(sizeof(float));
  }

  class Worker {
   public:
    Worker(const BackwardChosen& whole, Scratch& scratch, int64_t key_head, Place place)
        : p_(whole.p_), c_(whole.c_), lists_(p_, c_, scratch), tile_(p_, scratch), place_(place) {
      const int64_t t = p_.tile;
      grads_ = scratch.take<float>(kGathered * tile_.value_width);
      grad_scores_ = scratch.take<float>(kGathered * t);
      grad_queries_ = scratch.take<float>(kGathered * tile_.width);
      grad_keys_ = scratch.take<float>(t * tile_.width);
      grad_values_ = scratch.take<float>(t * tile_.value_width);
    }

    void run(const ChosenTask& task) {
      const int64_t group = p_.heads / p_.kv_heads, first = task.kv_head * group;
      for (int64_t head = first; head < first + group; ++head)
        std::fill_n(c_.grad_q + at(task, head, task.first) * p_.dim, (task.past - task.first) * p_.dim, 0.0f);
      for_members(p_, c_, task.kv_head, [&](const Members& members) {
        lists_.fill(task.batch, members.choice, task.first, task.past);
        for (int64_t tile = 0; tile < lists_.tiles(); ++tile) {
          if (lists_.begin(tile) == lists_.end(tile)) continue;
          tile_.take(task, tile, true);
          std::fill_n(grad_keys_, p_.tile * tile_.width, 0.0f);
          std::fill_n(grad_values_, p_.tile * tile_.value_width, 0.0f);
          for (int64_t head = members.first; head < members.past; ++head)
            for (int64_t begin = lists_.begin(tile); begin < lists_.end(tile); begin += kGathered)
              differentiate(task, head, begin, std::min(lists_.end(tile), begin + kGathered));
          leave(grad_keys_, tile_.width, p_.dim, place_.grad_k + tile * p_.tile * p_.dim);
          leave(grad_values_, tile_.value_width, p_.value_dim, place_.grad_v + tile * p_.tile * p_.value_dim);
        }
      });
    }

   private:
    int64_t at(const ChosenTask& task, int64_t head, int64_t query) const {
      return (task.batch * p_.heads + head) * p_.n_queries + query;
    }

    void differentiate(const ChosenTask& task, int64_t head, int64_t begin, int64_t end) {
      const int rows = static_cast<int>(end - begin), t = static_cast<int>(p_.tile);
      const int width = tile_.width, value_width = tile_.value_width;
      for (int i = 0; i < rows; ++i) {
        tile_.gather(task.batch, head, lists_.query(begin + i), i);
        tile_.copy_token(p_.grad_out, task.batch, head, lists_.query(begin + i), p_.value_dim, grads_ + i * value_width);
      }
      tile_.score(lists_, begin, end);
      product<FloatUnits, false>(rows, t, static_cast<int>(p_.value_dim), {grads_, value_width, 1},
                                 tile_.turned_values, t, grad_scores_, t);
      for (int i = 0; i < rows; ++i) weigh(i, at(task, head, lists_.query(begin + i)));
      product<FloatUnits, true>(tile_.n_keys, value_width, rows, {tile_.scores, 1, t}, grads_, value_width,
                                grad_values_, value_width);
      product<FloatUnits, true>(tile_.n_keys, width, rows, {grad_scores_, 1, t}, tile_.queries, width, grad_keys_,
                                width);
      product<FloatUnits, false>(rows, width, t, {grad_scores_, t, 1}, tile_.used_keys, width, grad_queries_, width);
      for (int i = 0; i < rows; ++i) {
        float* to = c_.grad_q + at(task, head, lists_.query(begin + i)) * p_.dim;
        for (int64_t d = 0; d < p_.dim; ++d) to[d] += grad_queries_[i * width + d];
      }
    }

    // Scores of a row become weights, gradients of weights those of the products q . k. What is not read gets none,
    // also where the gradient of its weight is NaN.
    void weigh(int i, int64_t row) {
      const int t = static_cast<int>(p_.tile);
      const float lse = p_.lse[row];
      const Vector shift = splat(lse == -kInfinity ? kInfinity : lse * kLog2E), delta = splat(c_.delta[row]);
      const Vector scale = splat(p_.scale);
      for (int j = 0; j < t; j += kLanes) {
        float *score = tile_.scores + i * t + j, *grad = grad_scores_ + i * t + j;
        const Vector raw = load(score), weight = exp2(raw - shift);
        store(score, weight);
        store(grad, keep(weight * (load(grad) - delta) * scale, bits_of(raw != splat(-kInfinity))));
      }
    }

    void leave(const float* from, int width, int64_t dim, float* to) const {
      for (int j = 0; j < tile_.n_keys; ++j)
        for (int64_t d = 0; d < dim; ++d) to[j * dim + d] += from[static_cast<int64_t>(j) * width + d];
    }

    const Problem& p_;
    const Chosen& c_;
    ChosenLists lists_;
    ChosenTile<Kind> tile_;
    const Place place_;
    float *grads_, *grad_scores_, *grad_queries_, *grad_keys_, *grad_values_;
  };

  const Problem& p_;
  const Chosen& c_;
  const int64_t stretch_, stretches_;
  int64_t runs_;
  std::vector<Sums> sums_;
};

}  // namespace

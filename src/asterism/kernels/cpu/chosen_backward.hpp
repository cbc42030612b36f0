// The backward pass of attention to blocks that queries chose (chosen.hpp).
//
// The gradients of a tile's keys and values are summed while the tile is there; those of a query lie in memory in between.
// Queries and tiles of keys are cut into as many parts, and in turn t the queries of part i meet the keys of part i + t,
// counted round: no two tasks of a turn write the same gradients, and the order of additions is that of the turns.

#pragma once

#include "chosen.hpp"

namespace {

constexpr int64_t kLongestBackward = 8192;  // queries of a stretch, whose gradients are to stay in a cache
constexpr int64_t kParts = 8;

template <class Kind>
class BackwardChosen {
 public:
  BackwardChosen(const Problem& p, const Chosen& c)
      : p_(p), c_(c), stretch_(stretch_of(p, kLongestBackward)), stretches_((p.n_queries + stretch_ - 1) / stretch_) {}

  void run() {
    for (int64_t turn = 0; turn < kParts; ++turn)
      in_parallel(p_, p_.batch * p_.kv_heads * kParts, scratch(), [&](int64_t i, Scratch& scratch) {
        const int64_t key_head = i / kParts, part = kParts - 1 - i % kParts;  // late queries read most
        run(key_head, part, (part + turn) % kParts, scratch);
      });
  }

 private:
  // The queries of one part and the tiles of another.
  void run(int64_t key_head, int64_t queries, int64_t keys, Scratch& scratch) const {
    const int64_t tiles = tiles_of(p_), first = tiles * keys / kParts, past = tiles * (keys + 1) / kParts;
    Worker worker(*this, scratch, first, past);
    for (int64_t at = stretches_ * queries / kParts; at < stretches_ * (queries + 1) / kParts; ++at)
      worker.run({key_head / p_.kv_heads, key_head % p_.kv_heads, at * stretch_,
                  std::min(p_.n_queries, (at + 1) * stretch_)});
  }

  int64_t scratch() const {
    const int64_t t = p_.tile, d = padded(p_.dim), dv = padded(p_.value_dim);
    const int64_t floats = kGathered * (dv + t + d) + t * (d + dv) + 512;
    return ChosenLists::scratch(p_, c_, stretch_) + ChosenTile<Kind>::scratch(p_) + floats * static_cast<int64_t>(sizeof(float));
  }

  class Worker {
   public:
    Worker(const BackwardChosen& whole, Scratch& scratch, int64_t first_tile, int64_t past_tile)
        : p_(whole.p_),
          c_(whole.c_),
          lists_(p_, c_, whole.stretch_, scratch),
          tile_(p_, scratch),
          first_tile_(first_tile),
          past_tile_(past_tile) {
      const int64_t t = p_.tile;
      grads_ = scratch.take<float>(kGathered * tile_.value_width);
      grad_scores_ = scratch.take<float>(kGathered * t);
      grad_queries_ = scratch.take<float>(kGathered * tile_.width);
      grad_keys_ = scratch.take<float>(t * tile_.width);
      grad_values_ = scratch.take<float>(t * tile_.value_width);
    }

    ASTERISM_ONE_COPY void run(const ChosenTask& task) {
      for_members(p_, c_, task.kv_head, [&](const Members& members) {
        lists_.fill(task, members.choice, first_tile_, past_tile_);
        for (int64_t tile = first_tile_; tile < past_tile_; ++tile)
          if (lists_.begin(tile) < lists_.end(tile)) differentiate(task, members, tile);
      });
    }

   private:
    int64_t at(const ChosenTask& task, int64_t head, int64_t query) const {
      return (task.batch * p_.heads + head) * p_.n_queries + query;
    }

    void differentiate(const ChosenTask& task, const Members& members, int64_t tile) {
      tile_.take(task, tile, true);
      std::fill_n(grad_keys_, p_.tile * tile_.width, 0.0f);
      std::fill_n(grad_values_, p_.tile * tile_.value_width, 0.0f);
      for (int64_t head = members.first; head < members.past; ++head)
        for (int64_t begin = lists_.begin(tile); begin < lists_.end(tile); begin += kGathered)
          differentiate(task, head, begin, std::min(lists_.end(tile), begin + kGathered));
      const int64_t key = (task.batch * p_.kv_heads + task.kv_head) * p_.n_keys + tile * p_.tile;
      leave(grad_keys_, tile_.width, p_.dim, c_.grad_k + key * p_.dim);
      leave(grad_values_, tile_.value_width, p_.value_dim, c_.grad_v + key * p_.value_dim);
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
    const int64_t first_tile_, past_tile_;
    float *grads_, *grad_scores_, *grad_queries_, *grad_keys_, *grad_values_;
  };

  const Problem& p_;
  const Chosen& c_;
  const int64_t stretch_, stretches_;
};

}  // namespace

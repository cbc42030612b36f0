// Choosing blocks of keys: the highest of the products of queries with what stands for each block.
//
// The lowest score that is chosen is found by halving: how many are above a score is counted a vector at a time, which is
// cheaper than keeping a list in order. No product is rounded differently beside others, and of equal scores the lower
// block is chosen, so threads have no part in the result.

#pragma once

#include <algorithm>
#include <cfloat>
#include <cstdint>

#include "interface.hpp"
#include "memory.hpp"
#include "parallel.hpp"
#include "products.hpp"
#include "tokens.hpp"
#include "vectors.hpp"

namespace {

constexpr int kChoosing = 32;  // queries at a time
constexpr int kPanel = 256;    // blocks at a time
constexpr int kHalvings = 20;  // mostly fewer do; what they leave is sorted

class Choosing {
 public:
  explicit Choosing(const Choices& c) : c_(c) {}

  void run() {
    const int64_t chunks = (c_.n_queries + kChoosing - 1) / kChoosing;
    const int64_t floats = kChoosing * (c_.row + padded(c_.dim)) + c_.row + 512;
    in_parallel(c_, c_.batch * c_.heads * chunks, floats * static_cast<int64_t>(sizeof(float)),
                [&](int64_t i, Scratch& scratch) {
                  const int64_t first = i % chunks * kChoosing;
                  Worker(c_, scratch).run(i / chunks, first, std::min(c_.n_queries, first + kChoosing));
                });
  }

 private:
  class Worker {
   public:
    Worker(const Choices& c, Scratch& scratch) : c_(c), width_(padded(c.dim)) {
      queries_ = scratch.take<float>(kChoosing * width_);
      scores_ = scratch.take<float>(kChoosing * c.row);
      open_ = scratch.take<int32_t>(c.row);
    }

    ASTERISM_ONE_COPY void run(int64_t unit, int64_t first, int64_t past) {
      const int rows = static_cast<int>(past - first);
      int64_t end = 0;
      for (int i = 0; i < rows; ++i) {
        std::copy_n(c_.q + (unit * c_.n_queries + first + i) * c_.dim, c_.dim, queries_ + i * width_);
        end = std::max(end, last_of(first + i));
      }
      const float* keys = c_.keys + unit * c_.dim * c_.row;
      for (int64_t begin = 0; begin < end; begin += kPanel)
        product<FloatUnits, false>(rows, padded(std::min<int64_t>(kPanel, end - begin)), static_cast<int>(c_.dim),
                                   {queries_, width_, 1}, keys + begin, c_.row, scores_ + begin, c_.row);
      for (int i = 0; i < rows; ++i) choose(unit, first + i, scores_ + i * c_.row);
    }

   private:
    // One past the last block that a query may choose.
    int64_t last_of(int64_t query) const {
      const int64_t past = c_.may.offsets[query + 1];
      return c_.may.offsets[query] < past ? c_.may.bounds[2 * past - 1] : 0;
    }

    void choose(int64_t unit, int64_t query, float* scores) const {
      const int64_t row = unit * c_.n_queries + query;
      int32_t *const to = c_.indices + row * c_.width, *at = to;
      for (int64_t i = c_.must.offsets[query]; i < c_.must.offsets[query + 1]; ++i)
        for (int32_t block = c_.must.bounds[2 * i]; block < c_.must.bounds[2 * i + 1]; ++block) *at++ = block;
      at = choose_highest(scores, padded(last_of(query)), prepare(unit, query, scores), c_.topk - (at - to), at);
      std::sort(to, at);
      std::fill(at, to + c_.width, -1);
      c_.counts[row] = static_cast<int32_t>(at - to);
    }

    // Scores that are finite, and -infinity for what the query may not choose; how many it may.
    int64_t prepare(int64_t unit, int64_t query, float* scores) const {
      int64_t done = 0, n = 0;
      for (int64_t i = c_.may.offsets[query]; i < c_.may.offsets[query + 1]; ++i) {
        const int64_t begin = c_.may.bounds[2 * i], end = c_.may.bounds[2 * i + 1];
        std::fill(scores + done, scores + begin, -kInfinity);
        for (int64_t j = begin; j < end; ++j) {
          const float score = scores[j] < FLT_MAX ? scores[j] : FLT_MAX;  // NaN, too
          scores[j] = scores[j] >= -FLT_MAX ? score : -FLT_MAX;
        }
        n += end - begin;
        done = end;
      }
      std::fill(scores + done, scores + padded(done), -kInfinity);
      const uint8_t* readable = c_.readable ? c_.readable + unit / c_.heads * c_.n_blocks : nullptr;
      for (int64_t j = 0; readable && j < done; ++j) {
        if (readable[j] || scores[j] == -kInfinity) continue;
        scores[j] = -kInfinity;
        --n;
      }
      return n;
    }

    // Writes the `wanted` highest of n candidates among `end` scores, and returns the end of what it wrote.
    int32_t* choose_highest(const float* scores, int64_t end, int64_t n, int64_t wanted, int32_t* to) const {
      if (wanted <= 0 || n == 0) return to;
      float below = -kInfinity, above = kInfinity;  // more than `wanted` are above the one, fewer above the other
      if (n > wanted) narrow(scores, end, wanted, below, above);
      int64_t n_open = 0;  // those between the two
      int32_t* const first = to;
      for (int64_t j = 0; j < end; j += kLanes) {
        const Vector some = load(scores + j);
        for (uint32_t bits = bits_of(some > splat(below)); bits; bits &= bits - 1) {
          const auto block = static_cast<int32_t>(j + __builtin_ctz(bits));
          if (n <= wanted || scores[block] > above)
            *to++ = block;
          else
            open_[n_open++] = block;
        }
      }
      const int64_t left = std::min(wanted - (to - first), n_open);
      if (left < n_open)
        std::nth_element(open_, open_ + left, open_ + n_open, [scores](int32_t a, int32_t b) {
          return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
        });
      return std::copy_n(open_, left, to);
    }

    // Moves the two towards each other, by halves of what lies between them.
    static void narrow(const float* scores, int64_t end, int64_t wanted, float& below, float& above) {
      Vector most = splat(-FLT_MAX), least = most;  // of what is negative, the most
      for (int64_t j = 0; j < end; j += kLanes) {
        const Vector some = load(scores + j);
        most = larger(some, most);
        least = larger(some == splat(-kInfinity) ? splat(-FLT_MAX) : -some, least);
      }
      float low = -highest_of(reinterpret_cast<const float*>(&least), kLanes);
      above = highest_of(reinterpret_cast<const float*>(&most), kLanes);
      for (int i = 0; i < kHalvings && low < above; ++i) {
        const float middle = low / 2 + above / 2;
        const int64_t found = count_above(scores, end, middle);
        (found < wanted ? above : low) = middle;
        if (found >= wanted) below = middle;
        if (found == wanted) break;
      }
    }

    static int64_t count_above(const float* scores, int64_t end, float limit) {
      Integers count = {};
      for (int64_t j = 0; j < end; j += kLanes) count -= load(scores + j) > splat(limit);
      int64_t found = 0;
      for (int lane = 0; lane < kLanes; ++lane) found += count[lane];
      return found;
    }

    const Choices& c_;
    const int width_;
    float *queries_, *scores_;
    int32_t* open_;
  };

  const Choices& c_;
};

}  // namespace

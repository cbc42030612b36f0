// Keys and values of a few heads, each head's tokens one after the other.
//
// A projection leaves the heads of a token side by side, so that the tokens of one head lie thousands of bytes apart, many
// of them in pages of their own. Every tile that reads them pays for that: up to a quarter of the time of a long dense
// pass. Where keys are read often enough, copying them first is cheaper.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "batch.hpp"
#include "interface.hpp"
#include "memory.hpp"
#include "parallel.hpp"

namespace {

constexpr int64_t kGatheredBytes = 8 << 20;  // copied at a time, about
constexpr int64_t kFewestReads = 4;  // of a tile of keys, on average: below, a copy wins nothing

class Gathered {
 public:
  Gathered(const Problem& given, Team& team) : problem(given), given_(given), team_(team) {
    if (!is_read_often(given)) return;
    gathers_k_ = is_scattered(given.k, given.dim);
    gathers_v_ = is_scattered(given.v, given.value_dim);
  }

  // How many key heads may be copied together: about kGatheredBytes, and at least so many heads.
  int64_t key_heads_at_a_time(int64_t least) const {
    const int64_t heads = given_.batch * given_.kv_heads, bytes = (key_floats() + value_floats()) * width_of(given_);
    return bytes ? std::clamp<int64_t>(kGatheredBytes / bytes, std::min(least, heads), heads) : heads;
  }

  // Copies those of key heads [first, past): until the next call, `problem` has no others.
  void take(int64_t first, int64_t past) {
    if (first == first_ && past == past_) return;
    first_ = first;
    past_ = past;
    if (gathers_k_) copy(given_.k, given_.dim, key_floats(), keys_, problem.k);
    if (gathers_v_) copy(given_.v, given_.value_dim, value_floats(), values_, problem.v);
  }

  Problem problem;  // the one that was given, but for where k and v lie

 private:
  static int64_t width_of(const Problem& p) { return p.is_bfloat16 ? 2 : 4; }

  static bool is_scattered(const Tensor& x, int64_t dim) { return x.feature != 1 || x.token != dim; }

  static bool is_read_often(const Problem& p) {
    int64_t read = 0;
    for (int64_t i = 0; i < p.n_passes; ++i)
      for (int64_t head = 0; head < p.heads; ++head)
        if (const int64_t* offsets = offsets_of(p.passes[i], head)) read += offsets[p.passes[i].n_rows] - offsets[0];
    return read >= kFewestReads * p.kv_heads * ((p.n_keys + p.tile - 1) / p.tile);
  }

  // Numbers of one head; 0 where nothing is copied.
  int64_t key_floats() const { return gathers_k_ ? given_.n_keys * given_.dim : 0; }
  int64_t value_floats() const { return gathers_v_ ? given_.n_keys * given_.value_dim : 0; }

  struct Copy {
    std::unique_ptr<unsigned char, Free> data;
    int64_t bytes = 0;
  };

  void copy(const Tensor& from, int64_t dim, int64_t per_head, Copy& to, Tensor& placed) {
    const int64_t width = width_of(given_), bytes = (past_ - first_) * per_head * width;
    if (to.bytes < bytes) {
      to.data.reset();  // given back before more is asked for
      const int64_t room = (bytes + kAlignment - 1) / kAlignment * kAlignment;
      to.data.reset(static_cast<unsigned char*>(std::aligned_alloc(kAlignment, room)));
      if (!to.data) throw std::bad_alloc();
      to.bytes = bytes;
    }
    placed = {to.data.get() - first_ * per_head * width, given_.kv_heads * per_head, per_head, dim, 1};
    team_.run_in_chunks(past_ - first_, given_.n_keys, dim, [&](int64_t i, int64_t begin, int64_t past) {
      const int64_t head = first_ + i;
      const auto* rows = static_cast<const unsigned char*>(from.data) +
                         (head / given_.kv_heads * from.batch + head % given_.kv_heads * from.head) * width;
      for (int64_t token = begin; token < past; ++token)
        copy_row(rows + token * from.token * width, from.feature, dim,
                 to.data.get() + (i * given_.n_keys + token) * dim * width);
    });
  }

  void copy_row(const unsigned char* from, int64_t feature, int64_t dim, unsigned char* to) const {
    const int64_t width = width_of(given_);
    if (feature == 1) return void(std::memcpy(to, from, dim * width));
    for (int64_t d = 0; d < dim; ++d) std::memcpy(to + d * width, from + d * feature * width, width);
  }

  const Problem& given_;
  Team& team_;
  bool gathers_k_ = false, gathers_v_ = false;
  int64_t first_ = 0, past_ = 0;  // the key heads that lie here
  Copy keys_, values_;
};

}  // namespace

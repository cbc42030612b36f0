// The forward pass over all heads, passes and rows of tiles.
//
// A plan has several passes, each with its own order of queries and keys. A pass continues the softmax that earlier
// passes left in (out, lse), as if their result were one more key.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <vector>

#include "forward_row.hpp"
#include "parallel.hpp"

namespace {

struct Piece {  // entries [begin, end) of a tile row of one head; `part` >= 0 if the row has several pieces
  int64_t unit, row, begin, end, part;
};

// The tile rows of heads [first, past) in a pass, long ones cut so that no piece holds the others up, longest first.
inline std::vector<Piece> cut_rows(const Problem& p, const Pass& pass, int64_t first, int64_t past, int64_t* parts) {
  std::vector<Piece> pieces;
  int64_t tiles = 0;
  for (int64_t unit = first; unit < past; ++unit) {
    const int32_t list = pass.list_of_head[unit % p.heads];
    if (list < 0) continue;
    const int64_t* offsets = pass.row_offsets + list * (pass.n_rows + 1);
    tiles += offsets[pass.n_rows] - offsets[0];
  }
  const int64_t longest = std::max<int64_t>(64, tiles / (8 * std::max(1, p.threads)));
  *parts = 0;
  for (int64_t unit = first; unit < past; ++unit) {
    const int32_t list = pass.list_of_head[unit % p.heads];
    if (list < 0) continue;
    const int64_t* offsets = pass.row_offsets + list * (pass.n_rows + 1);
    for (int64_t row = 0; row < pass.n_rows; ++row) {
      const int64_t begin = offsets[row], end = offsets[row + 1];
      if (begin == end) continue;
      if (end - begin <= longest || p.threads < 2) {
        pieces.push_back({unit, row, begin, end, -1});
        continue;
      }
      for (int64_t at = begin; at < end; at += longest)
        pieces.push_back({unit, row, at, std::min(end, at + longest), (*parts)++});
    }
  }
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const Piece& a, const Piece& b) { return a.end - a.begin > b.end - b.begin; });
  return pieces;
}

template <class Kind>
class Forward {
 public:
  explicit Forward(const Problem& p) : p_(p), keeps_floats_(!p.is_bfloat16) {}

  void run() {
    const int64_t heads = p_.batch * p_.heads, floats = p_.n_queries * p_.value_dim;
    const int64_t wave = heads_at_a_time(heads, keeps_floats_ ? 0 : floats * 4, 1);
    for (first_ = 0; first_ < heads; first_ += wave) {
      const int64_t past = std::min(heads, first_ + wave);
      if (!keeps_floats_) sums_.reset((past - first_) * floats);
      in_parallel(p_, past - first_, 0, [&](int64_t i, Scratch&) { clear_head(first_ + i); });
      for (int64_t i = 0; i < p_.n_passes; ++i) run_pass(p_.passes[i], past, i > 0);
      if (!keeps_floats_) in_parallel(p_, past - first_, 0, [&](int64_t i, Scratch&) { round_head(first_ + i); });
    }
  }

 private:
  float* out(int64_t unit) const {
    const int64_t floats = p_.n_queries * p_.value_dim;
    return keeps_floats_ ? static_cast<float*>(p_.out) + unit * floats : sums_.get() + (unit - first_) * floats;
  }
  float* lse(int64_t unit) const { return p_.lse + unit * p_.n_queries; }

  void run_pass(const Pass& pass, int64_t past, bool later) {
    int64_t parts;
    const std::vector<Piece> pieces = cut_rows(p_, pass, first_, past, &parts);
    const int64_t tile_floats = p_.tile * (p_.value_dim + 1);
    Sums partial;
    partial.reset(parts * tile_floats);
    in_parallel(p_, pieces.size(), Row<Kind>::scratch(p_, false), [&](int64_t i, Scratch& scratch) {
      const Piece& piece = pieces[i];
      ForwardRow<Kind> row(p_, pass, scratch);
      const bool whole = piece.part < 0;
      row.begin(piece.unit / p_.heads, piece.unit % p_.heads, piece.row, whole && later ? out(piece.unit) : nullptr,
                lse(piece.unit));
      row.read(piece.begin, piece.end);
      float* part = partial.get() + std::max<int64_t>(piece.part, 0) * tile_floats;
      if (whole)
        row.finish(out(piece.unit), lse(piece.unit), false);
      else
        row.finish(part, part + p_.tile * p_.value_dim, true);
    });
    std::vector<Piece> split;
    std::copy_if(pieces.begin(), pieces.end(), std::back_inserter(split), [](const Piece& x) { return x.part >= 0; });
    std::sort(split.begin(), split.end(), [](const Piece& a, const Piece& b) { return a.part < b.part; });
    for (const Piece& piece : split) merge(pass, piece, partial.get() + piece.part * tile_floats);
  }

  // out and lse of a piece's queries, joined with those of its part.
  void merge(const Pass& pass, const Piece& piece, const float* part) {
    const float* part_lse = part + p_.tile * p_.value_dim;
    const int64_t first = piece.row * p_.tile, count = std::min<int64_t>(p_.tile, pass.n_queries - first);
    for (int64_t i = 0; i < count; ++i) {
      if (part_lse[i] == -kInfinity) continue;
      const int64_t at = pass.query_index ? pass.query_index[first + i] : first + i;
      float& lse = this->lse(piece.unit)[at];
      const float highest = std::max(lse, part_lse[i]);
      const float old_weight = std::exp(lse - highest), new_weight = std::exp(part_lse[i] - highest);
      const float total = old_weight + new_weight;
      float* to = out(piece.unit) + at * p_.value_dim;
      for (int64_t d = 0; d < p_.value_dim; ++d)
        to[d] = (to[d] * old_weight + part[i * p_.value_dim + d] * new_weight) / total;
      lse = highest + std::log(total);
    }
  }

  // A head with nothing read yet. Not left to PyTorch, whose threads would be waited for in a copy of the process.
  void clear_head(int64_t unit) {
    if (keeps_floats_) std::fill_n(out(unit), p_.n_queries * p_.value_dim, 0.0f);
    std::fill_n(lse(unit), p_.n_queries, -kInfinity);
  }

  void round_head(int64_t unit) {
    const int64_t floats = p_.n_queries * p_.value_dim;
    float* sums = out(unit);
    uint16_t* narrow = static_cast<uint16_t*>(p_.out) + unit * floats;
    round_to_bfloat16(sums, floats, narrow);
    for (int64_t i = 0; i < floats; ++i) sums[i] -= bfloat16_to_float(narrow[i]);
    round_to_bfloat16(sums, floats, static_cast<uint16_t*>(p_.residual) + unit * floats);
  }

  const Problem& p_;
  const bool keeps_floats_;
  int64_t first_ = 0;
  Sums sums_;
};

}  // namespace

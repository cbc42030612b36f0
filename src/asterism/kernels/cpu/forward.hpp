// The forward pass over all heads, passes and rows of tiles.
//
// A plan has several passes, each with its own order of queries and keys. A pass continues the softmax that earlier
// passes left in the output, as if their result were one more key.

#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <vector>

#include "batch.hpp"
#include "forward_row.hpp"
#include "gather.hpp"
#include "islands.hpp"
#include "parallel.hpp"

namespace {

struct Piece {  // entries [begin, end) of a tile row of one head, the whole row (split: -1) or one of its parts
  int64_t unit, row, begin, end, split, part;
};

struct Split {  // a row that is cut: its parts are [first, past), and at `past` there is room for one more
  int64_t unit, row, first, past;
};

constexpr int64_t kShortestPart = 64;  // tiles; shorter rows are never cut
constexpr int64_t kRowsPerThread = 32;  // in a phase, at least, where the heads have so many
constexpr int64_t kFewestPieces = 512;  // longer rows than such a share of the pass are cut, whatever the threads

// The tile rows of heads [first, past) in a pass: long ones cut, so that none holds the others up. The number of threads
// has a part in their order only, so that it has none in the results.
class Pieces {
 public:
  // starting[head]: the pass that is the first to write a head's queries, and writes all of them.
  Pieces(const Problem& p, const Batch& batch, int64_t number, int64_t first, int64_t past,
         const std::vector<int64_t>& starting) {
    const int64_t longest = longest_part(p, batch, number);
    for (int64_t begin = first, end; begin < past; begin = end) {
      end = std::min(past, (begin / p.heads + 1) * p.heads);  // the heads of a row of the batch
      const Pass& pass = batch.pass(number, begin / p.heads);
      const std::vector<int64_t> islands = islands_of(p, pass);
      for (size_t i = 0; i + 1 < islands.size(); ++i)
        for (int64_t unit = begin; unit < end; ++unit) {
          const int64_t* offsets = offsets_of(pass, unit % p.heads);
          for (int64_t row = islands[i]; offsets && row < islands[i + 1]; ++row)
            if (offsets[row] < offsets[row + 1] || starting[unit % p.heads] == number)
              add(unit, row, offsets[row], offsets[row + 1], longest);
        }
    }
    put_long_ones_first(pieces, p.threads, [](const Piece& piece) { return piece.end - piece.begin; });
  }

  std::vector<Piece> pieces;
  std::vector<Split> splits;
  int64_t parts = 0;

 private:
  static int64_t longest_part(const Problem& p, const Batch& batch, int64_t number) {
    int64_t tiles = 0;
    for (int64_t unit = 0; unit < p.batch * p.heads; ++unit) {
      const Pass& pass = batch.pass(number, unit / p.heads);
      if (const int64_t* offsets = offsets_of(pass, unit % p.heads)) tiles += offsets[pass.n_rows] - offsets[0];
    }
    return std::max(kShortestPart, tiles / kFewestPieces);
  }

  void add(int64_t unit, int64_t row, int64_t begin, int64_t end, int64_t longest) {
    if (end - begin <= longest) {
      pieces.push_back({unit, row, begin, end, -1, -1});
      return;
    }
    const int64_t split = splits.size(), first = parts;
    for (int64_t at = begin; at < end; at += longest)
      pieces.push_back({unit, row, at, std::min(end, at + longest), split, parts++});
    splits.push_back({unit, row, first, parts});
    ++parts;
  }
};

template <class Kind>
class Forward {
 public:
  Forward(const Problem& p, Team& team)
      : gathered_(p, team), p_(gathered_.problem), team_(team), batch_(p_), tables_(p_), starting_(p.heads, -1) {}

  void run() {
    for (int64_t head = 0; head < p_.heads; ++head) starting_[head] = starting_pass(head);
    clear();
    const int64_t units = p_.batch * p_.heads, wave = heads_in_work(units), group = p_.heads / p_.kv_heads;
    for (int64_t first = 0, past; first < units; first = past) {
      past = std::min(units, first + wave);
      gathered_.take(first / group, (past + group - 1) / group);
      for (int64_t i = 0; i < p_.n_passes; ++i) run_pass(i, first, past);
    }
  }

 private:
  // A few heads at a time, so that the copies of their keys are no larger than they must be, and so that of several passes
  // the next one finds in the cache what the last one left; but there must be rows enough for all threads.
  int64_t heads_in_work(int64_t units) const {
    const int64_t rows = (p_.n_queries + p_.tile - 1) / p_.tile, wanted = kRowsPerThread * std::max(1, p_.threads);
    const int64_t least = (wanted + rows - 1) / std::max<int64_t>(rows, 1), group = p_.heads / p_.kv_heads;
    const int64_t wave = gathered_.key_heads_at_a_time((least + group - 1) / group) * group;
    if (p_.n_passes < 2) return wave;
    const int64_t few = heads_at_a_time(units, p_.n_queries * p_.value_dim * 4, least);
    return std::min(wave, (few + group - 1) / group * group);
  }

  int64_t starting_pass(int64_t head) const {
    for (int64_t i = 0; i < p_.n_passes; ++i)
      if (p_.passes[i].list_of_head[head] >= 0) return p_.passes[i].n_queries == p_.n_queries ? i : -1;
    return -1;
  }

  // Heads whose passes do not write every query. Not left to PyTorch, whose threads would be waited for in a copy of the
  // process.
  void clear() {
    std::vector<int64_t> units;
    for (int64_t unit = 0; unit < p_.batch * p_.heads; ++unit)
      if (starting_[unit % p_.heads] < 0) units.push_back(unit);
    if (units.empty()) return;
    team_.run_in_chunks(units.size(), p_.n_queries, p_.value_dim + 1, [&](int64_t i, int64_t first, int64_t past) {
      clear_outputs(p_, units[i] * p_.n_queries + first, units[i] * p_.n_queries + past);
    });
  }

  void run_pass(int64_t number, int64_t first, int64_t past) {
    const Pieces cut(p_, batch_, number, first, past, starting_);
    const int64_t part_floats = p_.tile * (p_.value_dim + 1);
    Sums parts;
    parts.reset(cut.parts * part_floats);
    std::vector<std::atomic<int64_t>> left(cut.splits.size());
    for (size_t i = 0; i < left.size(); ++i) left[i] = cut.splits[i].past - cut.splits[i].first;
    const auto work = [&](int64_t i) {
      const Piece& piece = cut.pieces[i];
      const int32_t* kinds = batch_.pass(number, piece.unit / p_.heads).kinds;
      return Task{0, piece.end - piece.begin, count_cut(kinds, piece.begin, piece.end), 1,
                  piece.split < 0 ? 0 : 2 * part_floats};
    };
    team_.run(cut.pieces.size(), ForwardRow<Kind>::scratch(p_, false), work, [&](int64_t i, Scratch& scratch) {
      const Piece& piece = cut.pieces[i];
      float* part = parts.get() + piece.part * part_floats;
      read(number, piece, part, scratch);
      // Who ends last puts the parts together, in their order.
      if (piece.split >= 0 && --left[piece.split] == 0)
        merge(number, cut.splits[piece.split], parts.get(), part_floats);
    });
  }

  bool continues(int64_t number, int64_t unit) const { return starting_[unit % p_.heads] != number; }

  void read(int64_t number, const Piece& piece, float* part, Scratch& scratch) {
    const Pass& pass = batch_.pass(number, piece.unit / p_.heads);
    if (piece.begin == piece.end) return clear_row(pass, piece);
    ForwardRow<Kind> row(p_, pass, tables_, scratch);
    row.begin(piece.unit / p_.heads, piece.unit % p_.heads, piece.row);
    if (piece.split < 0 && continues(number, piece.unit)) row.resume();
    row.read(piece.begin, piece.end);
    if (piece.split < 0)
      row.finish();
    else
      row.finish_part(part);
  }

  void clear_row(const Pass& pass, const Piece& piece) const {
    const int64_t first = piece.row * p_.tile, past = std::min(pass.n_queries, first + p_.tile);
    for (int64_t i = first; i < past; ++i) {
      const int64_t at = output(pass, piece.unit, i);
      clear_outputs(p_, at, at + 1);
    }
  }

  int64_t output(const Pass& pass, int64_t unit, int64_t place) const {
    return unit * p_.n_queries + (pass.query_index ? pass.query_index[place] : place);
  }

  // The output of a row from those of its parts; what earlier passes left is one more part.
  void merge(int64_t number, const Split& split, float* parts, int64_t part_floats) const {
    const Pass& pass = batch_.pass(number, split.unit / p_.heads);
    const bool continues = this->continues(number, split.unit);
    const int64_t first = split.row * p_.tile, count = std::min(p_.tile, pass.n_queries - first);
    float* begin = parts + split.first * part_floats;
    float* before = parts + split.past * part_floats;
    float* end = continues ? before + part_floats : before;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = output(pass, split.unit, first + i), lse = p_.tile * p_.value_dim + i;
      if (continues) {
        load_output<Kind>(p_, at, before + i * p_.value_dim);
        before[lse] = p_.lse[at];
      }
      p_.lse[at] = add_up(begin, end, part_floats, i * p_.value_dim, lse);
      store_output<Kind>(p_, at, begin + i * p_.value_dim);
    }
  }

  // The row at `row` of each part is added to that of the first, by their log-sum-exps at `lse`; returns the whole one.
  float add_up(float* begin, const float* end, int64_t part_floats, int64_t row, int64_t lse) const {
    float highest = -kInfinity, total = 0;
    for (const float* part = begin; part < end; part += part_floats) highest = std::max(highest, part[lse]);
    if (highest == -kInfinity) return highest;  // the rows are all 0
    for (const float* part = begin; part < end; part += part_floats) total += std::exp(part[lse] - highest);
    for (const float* part = begin; part < end; part += part_floats) {
      const float weight = std::exp(part[lse] - highest) / total;
      for (int64_t d = 0; d < p_.value_dim; ++d)
        begin[row + d] = (part == begin ? 0 : begin[row + d]) + part[row + d] * weight;
    }
    return highest + std::log(total);
  }

  Gathered gathered_;
  const Problem& p_;
  Team& team_;
  const Batch batch_;
  const TermTables<Kind> tables_;
  std::vector<int64_t> starting_;  // by head, the first of its passes if that one writes every query, else -1
};

}  // namespace

// What a batch forbids: key_mask and segments, summarised by tiles before any tile is computed.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "interface.hpp"
#include "parallel.hpp"

namespace {

// The passes as one row of the batch sees them: tiles of which it forbids every pair are left out, and tiles of which it
// forbids some have ~kind in place of their kind. Tiles that it leaves alone are those of the plan.
class RowOfBatch {
 public:
  RowOfBatch() = default;
  RowOfBatch(RowOfBatch&&) = default;  // never copied: the passes point into the lists
  RowOfBatch& operator=(RowOfBatch&&) = default;
  RowOfBatch(const Problem& p, int64_t batch) : lists_(p.n_passes) {
    for (int64_t i = 0; i < p.n_passes; ++i) {
      lists_[i].fill(p, p.passes[i], batch);
      passes_.push_back(p.passes[i]);
      passes_[i].row_offsets = lists_[i].row_offsets.data();
      passes_[i].columns = lists_[i].columns.data();
      passes_[i].kinds = lists_[i].kinds.data();
    }
  }

  const Pass& operator[](int64_t i) const { return passes_[i]; }

 private:
  enum Readable : uint8_t { kNone, kSome, kAll };

  struct Interval {  // of segments; empty if least > largest
    int64_t least = INT64_MAX, largest = INT64_MIN;
    void include(int64_t segment) {
      least = std::min(least, segment);
      largest = std::max(largest, segment);
    }
  };

  struct KeyTile {
    Readable readable;
    Interval segments;  // of the keys that may be read
  };

  struct Lists {
    std::vector<int64_t> row_offsets;
    std::vector<int32_t> columns, kinds;

    void fill(const Problem& p, const Pass& pass, int64_t batch) {
      const std::vector<KeyTile> keys = key_tiles(p, pass, batch);
      const std::vector<Interval> queries = query_tiles(p, pass, batch);
      const int64_t lists = pass.n_rows ? 1 + *std::max_element(pass.list_of_head, pass.list_of_head + p.heads) : 0;
      for (int64_t list = 0; list < lists; ++list) {
        const int64_t* offsets = pass.row_offsets + list * (pass.n_rows + 1);
        for (int64_t row = 0; row < pass.n_rows; ++row) {
          row_offsets.push_back(columns.size());
          for (int64_t at = offsets[row]; at < offsets[row + 1]; ++at)
            add(pass.columns[at], pass.kinds[at], readable(p, queries[row], keys[pass.columns[at]]));
        }
        row_offsets.push_back(columns.size());
      }
    }

    void add(int32_t column, int32_t kind, Readable readable) {
      if (readable == kNone) return;
      columns.push_back(column);
      kinds.push_back(readable == kAll ? kind : ~kind);
    }
  };

  static std::vector<KeyTile> key_tiles(const Problem& p, const Pass& pass, int64_t batch) {
    std::vector<KeyTile> tiles((pass.n_keys + p.tile - 1) / p.tile);
    for (size_t column = 0; column < tiles.size(); ++column) {
      const int64_t first = column * p.tile, past = std::min(pass.n_keys, first + p.tile);
      int64_t readable = 0;
      for (int64_t j = first; j < past; ++j) {
        const int64_t at = batch * p.n_keys + (pass.key_index ? pass.key_index[j] : j);
        if (p.key_mask && !p.key_mask[at]) continue;
        ++readable;
        if (p.segments) tiles[column].segments.include(p.segments[at]);
      }
      tiles[column].readable = readable == 0 ? kNone : readable == past - first ? kAll : kSome;
    }
    return tiles;
  }

  static std::vector<Interval> query_tiles(const Problem& p, const Pass& pass, int64_t batch) {
    std::vector<Interval> tiles(pass.n_rows);
    if (!p.segments) return tiles;
    const int64_t* segments = p.segments + batch * p.n_keys + p.query_offset;
    for (int64_t i = 0; i < pass.n_queries; ++i)
      tiles[i / p.tile].include(segments[pass.query_index ? pass.query_index[i] : i]);
    return tiles;
  }

  static Readable readable(const Problem& p, const Interval& queries, const KeyTile& keys) {
    if (!p.segments || keys.readable == kNone) return keys.readable;
    if (keys.segments.largest < queries.least || queries.largest < keys.segments.least) return kNone;
    const bool is_one = queries.least == queries.largest && keys.segments.least == keys.segments.largest;
    return is_one ? keys.readable : kSome;
  }

  std::vector<Lists> lists_;
  std::vector<Pass> passes_;
};

// Where the rows of a head's tiles begin, [n_rows + 1]; null if the head has no part in the pass.
inline const int64_t* offsets_of(const Pass& pass, int64_t head) {
  const int32_t list = pass.list_of_head[head];
  return list < 0 ? nullptr : pass.row_offsets + list * (pass.n_rows + 1);
}

inline int64_t count_cut(const int32_t* kinds, int64_t begin, int64_t end) {
  return std::count_if(kinds + begin, kinds + end, [](int32_t kind) { return kind < 0; });
}

// The passes of every row of the batch.
class Batch {
 public:
  explicit Batch(const Problem& p) : p_(p) {
    if (!p.key_mask && !p.segments) return;
    rows_.resize(p.batch);
    in_parallel(p, p.batch, 0, [&](int64_t i, Scratch&) { rows_[i] = RowOfBatch(p, i); });
  }

  const Pass& pass(int64_t i, int64_t batch) const { return rows_.empty() ? p_.passes[i] : rows_[batch][i]; }

 private:
  const Problem& p_;
  std::vector<RowOfBatch> rows_;
};

}  // namespace

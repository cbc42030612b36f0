// One row of tiles of one head: its packed queries, which keys they may read, and the raw scores of a tile.
//
// Scores are kept transposed, [key][query], so that maxima, exponentials and masks run along whole vectors of queries.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "interface.hpp"
#include "memory.hpp"
#include "results.hpp"
#include "tokens.hpp"

namespace {

constexpr int kMostGroups = 128 / kGroup;
constexpr int kKeysPerStep = 256;  // keys that share one step of the online softmax

// Which queries may read which keys of a tile: bits [key][words], null when all may; what lies outside of live is not
// computed.
struct Allowed {
  const uint64_t* bits;
  int64_t words;
  const uint8_t* live;
  bool has_unread, nothing;

  // Which of kLanes queries may read a key.
  uint32_t lanes(int64_t key, int query) const {
    return static_cast<uint32_t>(bits[key * words + query / 64] >> (query % 64)) & ((1u << kLanes) - 1);
  }
};

struct Range {
  int begin, end;
  bool operator==(const Range& other) const { return begin == other.begin && end == other.end; }
};

// Calls body(first, past, range) for runs of equal ranges; empty ranges are left out.
template <class Body>
void for_runs(const Range* ranges, int n, Body body) {
  for (int first = 0, past; first < n; first = past) {
    for (past = first + 1; past < n && ranges[past] == ranges[first];) ++past;
    if (ranges[first].begin < ranges[first].end) body(first, past, ranges[first]);
  }
}

template <class Kind>
class Row {
 public:
  using Element = typename Kind::Element;
  using Units = typename Kind::Units;

  // Bytes of scratch that a row needs.
  static int64_t scratch(const Problem& p, bool backward) {
    const int64_t t = p.tile, keys = std::max<int64_t>(kKeysPerStep, t), d = padded(p.dim) + padded(p.value_dim);
    int64_t floats = 16 * t + 4 * t * (padded(p.dim) + d) + 2 * keys * t + 2 * keys * padded(p.value_dim) + 1024;  // for what is rounded up
    if (backward) floats += 2 * t * t + 8 * t * d;
    return floats * static_cast<int64_t>(sizeof(float));
  }

  Row(const Problem& p, const Pass& pass, Scratch& scratch)
      : p_(p),
        pass_(pass),
        t_(static_cast<int>(p.tile)),
        groups_(t_ / kGroup),
        width_(padded(p.dim)),
        value_width_(padded(p.value_dim)),
        row_width_(Kind::row_width(p.dim)),
        value_row_width_(Kind::row_width(p.value_dim)) {
    const int64_t t = t_;
    highest_ = scratch.take<float>(t);
    total_ = scratch.take<float>(t);
    factor_ = scratch.take<float>(t);
    bits_ = scratch.take<uint64_t>(p.words * t);
    query_segments_ = scratch.take<int64_t>(t);
    rows_ = scratch.take<float>(t * std::max(width_, value_width_));
    queries_ = scratch.take<float>(t * width_);
    keys_ = scratch.take<float>(t * width_);
  }

  // The place in the order, the head's operands, and the packed queries of tile row `row`.
  void begin(int64_t batch, int64_t head, int64_t row) {
    batch_ = batch;
    head_ = head;
    first_ = row * t_;
    count_ = static_cast<int>(std::min<int64_t>(t_, pass_.n_queries - first_));
    const Tokens<Element> q = tokens(p_.q, head, pass_.query_index, first_, count_, p_.dim);
    pack_rows<Kind>(q, rows_, row_width_);
    transpose(rows_, row_width_, count_, Kind::units(p_.dim), queries_, t_);
    if (p_.segments)
      for (int i = 0; i < count_; ++i) query_segments_[i] = p_.segments[batch * p_.n_keys + p_.query_offset + query(i)];
  }

  int64_t query(int i) const { return pass_.query_index ? pass_.query_index[first_ + i] : first_ + i; }
  int64_t key(int64_t column, int j) const {
    return pass_.key_index ? pass_.key_index[column * t_ + j] : column * t_ + j;
  }

 protected:
  Tokens<Element> tokens(const Tensor& x, int64_t head, const int32_t* index, int64_t first, int count, int64_t dim) const {
    const Element* data = static_cast<const Element*>(x.data) + batch_ * x.batch + head * x.head;
    if (index && is_stretch(index + first, count)) {
      first = index[first];
      index = nullptr;
    }
    return {data, x.token, x.feature, index, first, count, static_cast<int>(dim)};
  }

  // Whether the keys of a tile follow one another in the sequence.
  bool are_stretch(int64_t column, int n_keys) const {
    return !pass_.key_index || is_stretch(pass_.key_index + column * t_, n_keys);
  }

  int keys_in(int64_t column) const { return static_cast<int>(std::min<int64_t>(t_, pass_.n_keys - column * t_)); }
  int64_t kv_head() const { return head_ / (p_.heads / p_.kv_heads); }

  // Where the output of a query lies, among batch * heads * n_queries.
  int64_t output(int i) const { return (batch_ * p_.heads + head_) * p_.n_queries + query(i); }

  // Outputs and the state of the softmax, from what earlier passes left.
  void load_outputs(float* rows, int width) {
    for (int i = 0; i < count_; ++i) {
      const float lse = p_.lse[output(i)];
      load_output<Kind>(p_, output(i), rows + static_cast<int64_t>(i) * width);
      highest_[i] = lse == -kInfinity ? lse : lse * kLog2E;
      total_[i] = lse == -kInfinity ? 0 : 1;
    }
  }

  // Rows of weighted sums become outputs, and the state of the softmax their log-sum-exp.
  void store_outputs(float* rows, int width) const {
    for (int i = 0; i < count_; ++i) {
      store_output<Kind>(p_, output(i), normalize(i, rows + static_cast<int64_t>(i) * width));
      p_.lse[output(i)] = log_sum_exp(i);
    }
  }

  void store_part(float* rows, int width, float* part) const {
    for (int i = 0; i < count_; ++i) {
      std::copy_n(normalize(i, rows + static_cast<int64_t>(i) * width), p_.value_dim, part + i * p_.value_dim);
      part[t_ * p_.value_dim + i] = log_sum_exp(i);
    }
  }

  float* normalize(int i, float* row) const {
    const float inverse = total_[i] == 0 ? 0 : 1 / total_[i];
    for (int64_t d = 0; d < p_.value_dim; ++d) row[d] *= inverse;
    return row;
  }

  float log_sum_exp(int i) const {
    return total_[i] == 0 ? -kInfinity : (highest_[i] + std::log2(total_[i])) * kLn2;
  }

  // A kind below 0 is that of a tile of which the batch forbids a part (batch.hpp).
  Allowed allowed(int64_t column, int32_t kind, int n_keys) {
    const bool is_cut = kind < 0;
    if (is_cut) kind = ~kind;
    const uint64_t* bits = kind ? p_.masks + (kind - 1) * p_.tile * p_.words : nullptr;
    const uint8_t* live = p_.live + static_cast<int64_t>(kind) * groups_ * 2;
    if (!is_cut) return {bits, p_.words, live, p_.has_unread[kind] != 0, false};
    const bool is_read = p_.words == 1 ? cut<1>(column, n_keys, bits) : cut<2>(column, n_keys, bits);
    return {bits_, p_.words, live, true, !is_read};
  }

  // bits_ = bits (null: all) without what the batch forbids; whether any is left.
  template <int kWords>
  bool cut(int64_t column, int n_keys, const uint64_t* bits) {
    uint64_t any = 0, same[kWords];
    std::fill(same, same + kWords, ~uint64_t{0});
    for (int j = 0; j < n_keys; ++j) {
      const int64_t at = batch_ * p_.n_keys + key(column, j);
      const uint64_t readable = !p_.key_mask || p_.key_mask[at] ? ~uint64_t{0} : 0;
      // Neighbours are mostly of one segment.
      if (p_.segments && (j == 0 || p_.segments[at] != p_.segments[batch_ * p_.n_keys + key(column, j - 1)]))
        find_segment<kWords>(p_.segments[at], same);
      for (int w = 0; w < kWords; ++w)
        any |= bits_[j * kWords + w] = readable & same[w] & (bits ? bits[j * kWords + w] : ~uint64_t{0});
    }
    return any != 0;
  }

  // One bit per query: whether it is of that segment.
  template <int kWords>
  void find_segment(int64_t segment, uint64_t* words) const {
    uint8_t same[64 * kWords] = {};
    for (int i = 0; i < count_; ++i) same[i] = query_segments_[i] == segment;
    for (int w = 0; w < kWords; ++w) {
      words[w] = 0;
      for (int byte = 0; byte < 8; ++byte) {
        uint64_t eight;
        std::memcpy(&eight, same + 64 * w + 8 * byte, 8);
        words[w] |= (eight * 0x0102040810204080 >> 56) << (8 * byte);  // the product moves byte i to bit 56 + i
      }
    }
  }

  // What no query of the tile may read must not get into a product: it may be NaN.
  void clear_unread(const Allowed& may, int n_keys, float* rows, int width) const {
    if (!may.has_unread) return;
    for (int j = 0; j < n_keys; ++j) {
      uint64_t any = 0;
      for (int w = 0; w < p_.words; ++w) any |= may.bits[j * p_.words + w];
      if (!any) std::memset(rows + static_cast<int64_t>(j) * width, 0, width * sizeof(float));
    }
  }

  // Writes the raw scores of a tile, [key][query], within its ranges; keeps the rows of its keys.
  void score(int64_t column, const Allowed& may, int n_keys, float* scores) {
    const auto k = tokens(p_.k, kv_head(), pass_.key_index, column * t_, n_keys, p_.dim);
    find_ranges(may, n_keys);
    key_rows_ = rows_of<Kind>(k, !may.has_unread, keys_, row_width_);
    clear_unread(may, n_keys, keys_, row_width_);
    multiply_live(key_rows_, n_keys, Kind::units(p_.dim), queries_, scores);
  }

  // The keys that each group of queries reads in a tile, and the queries that each group of keys is read by.
  void find_ranges(const Allowed& may, int n_keys) {
    for (int g = 0; g < groups_; ++g)
      ranges_[g] = {std::min(n_keys, may.live[2 * g] * kGroup), std::min(n_keys, may.live[2 * g + 1] * kGroup)};
    key_groups_ = (n_keys + kGroup - 1) / kGroup;
    for (int k = 0; k < key_groups_; ++k) {
      int first = 0, past = groups_;
      while (first < groups_ && !reads(first, k)) ++first;
      while (past > first && !reads(past - 1, k)) --past;
      query_ranges_[k] = {first * kGroup, past * kGroup};
    }
  }

  bool reads(int query_group, int key_group) const {
    return ranges_[query_group].begin <= key_group * kGroup && key_group * kGroup < ranges_[query_group].end;
  }

  // Products of the rows of keys with all queries that may read them, [key][query].
  void multiply_live(const Matrix& rows, int n_keys, int n_units, const float* columns, float* to) const {
    for_runs(query_ranges_, key_groups_, [&](int first, int past, Range queries) {
      const int64_t begin = first * kGroup, end = std::min(n_keys, past * kGroup);
      const Matrix a = {rows.data + begin * rows.row, rows.row, rows.column};
      product<Units, false>(static_cast<int>(end - begin), queries.end - queries.begin, n_units, a,
                            columns + queries.begin, t_, to + begin * t_ + queries.begin, t_);
    });
  }

  const Problem& p_;
  const Pass& pass_;
  const int t_, groups_;
  const int width_, value_width_;  // widths of tiles with units along the tokens ...
  const int row_width_, value_row_width_;  // ... and along the features
  int64_t batch_, head_, first_;
  int count_;
  float *highest_, *total_, *factor_, *rows_, *queries_, *keys_;
  Matrix key_rows_;
  Range ranges_[kMostGroups], query_ranges_[kMostGroups];
  int key_groups_;
  uint64_t* bits_;
  int64_t* query_segments_;
};

}  // namespace

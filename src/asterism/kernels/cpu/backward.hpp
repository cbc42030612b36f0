// The backward pass over all heads, passes and rows of tiles.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "backward_row.hpp"
#include "batch.hpp"
#include "deltas.hpp"
#include "gather.hpp"
#include "parallel.hpp"
#include "parts.hpp"
#include "term_gradients.hpp"

namespace {

// A thread works on a part of one key head's rows (parts.hpp). Sums lie in the gradients themselves if these are float32,
// else in float32 copies for a few key heads at a time.
template <class Kind>
class Backward {
 public:
  Backward(const Problem& p, Team& team)
      : gathered_(p, team),
        p_(gathered_.problem),
        team_(team),
        batch_(p_),
        tables_(p_),
        group_(p.heads / p.kv_heads),
        writes_rows_(p.grad_q && is_one_pass(p)),
        terms_(p_, team, tables_) {}

  void run() {
    const int64_t heads = p_.batch * p_.kv_heads;
    if (needs_score_gradients(p_)) write_deltas<Kind>(p_, team_, deltas_);
    terms_.clear();
    const int64_t floats = key_floats() + value_floats() + (p_.grad_q && !writes_rows_ ? group_ * query_floats() : 0);
    const int64_t threads = std::max(1, p_.threads);
    const int64_t wave = std::min(heads_at_a_time(heads, p_.is_bfloat16 ? floats * 4 : 0, threads),
                                  gathered_.key_heads_at_a_time(threads));
    for (first_ = 0; first_ < heads; first_ += wave) {
      past_ = std::min(heads, first_ + wave);
      gathered_.take(first_, past_);
      clear();
      for (int64_t i = 0; i < p_.n_passes; ++i) run_pass(i);
      if (p_.is_bfloat16) round();
    }
    terms_.round();
  }

 private:
  // Whether one pass has all queries of all heads: then a row is whole when it has been read.
  static bool is_one_pass(const Problem& p) {
    if (p.n_passes != 1 || p.passes[0].n_queries != p.n_queries) return false;
    return std::all_of(p.passes[0].list_of_head, p.passes[0].list_of_head + p.heads, [](int32_t list) { return list >= 0; });
  }

  // Floats of one head; 0 where no gradient is asked for.
  int64_t query_floats() const { return p_.n_queries * p_.dim; }
  int64_t key_floats() const { return p_.grad_k ? p_.n_keys * p_.dim : 0; }
  int64_t value_floats() const { return p_.grad_v ? p_.n_keys * p_.value_dim : 0; }

  float* sums(void* gradient, const Sums& copies, int64_t head, int64_t first, int64_t floats) const {
    return p_.is_bfloat16 ? copies.get() + (head - first) * floats : static_cast<float*>(gradient) + head * floats;
  }
  float* query_sums(int64_t unit) const { return sums(p_.grad_q, grad_q_, unit, first_ * group_, query_floats()); }
  float* key_sums(int64_t key_head) const { return sums(p_.grad_k, grad_k_, key_head, first_, key_floats()); }
  float* value_sums(int64_t key_head) const { return sums(p_.grad_v, grad_v_, key_head, first_, value_floats()); }

  // Calls body(sums, gradient, n) for stretches of the sums that are kept for the key heads in work.
  template <class Body>
  void for_sums(Body body) {
    const int64_t heads = past_ - first_;
    const auto each = [&](int64_t n, int64_t tokens, int64_t dim, auto sums, int64_t first, void* gradient) {
      const int64_t bytes = p_.is_bfloat16 ? 2 : 4;
      team_.run_in_chunks(n, tokens, dim, [&](int64_t i, int64_t begin, int64_t past) {
        unsigned char* to = static_cast<unsigned char*>(gradient) + ((first + i) * tokens + begin) * dim * bytes;
        body(sums(first + i) + begin * dim, to, (past - begin) * dim);
      });
    };
    if (p_.grad_k) each(heads, p_.n_keys, p_.dim, [&](int64_t i) { return key_sums(i); }, first_, p_.grad_k);
    if (p_.grad_v) each(heads, p_.n_keys, p_.value_dim, [&](int64_t i) { return value_sums(i); }, first_, p_.grad_v);
    if (p_.grad_q && !writes_rows_)
      each(heads * group_, p_.n_queries, p_.dim, [&](int64_t i) { return query_sums(i); }, first_ * group_, p_.grad_q);
  }

  void clear() {
    if (p_.is_bfloat16) {
      grad_k_.make_room((past_ - first_) * key_floats());
      grad_v_.make_room((past_ - first_) * value_floats());
      if (p_.grad_q && !writes_rows_) grad_q_.make_room((past_ - first_) * group_ * query_floats());
    }
    for_sums([](float* sums, void*, int64_t n) { std::memset(sums, 0, n * sizeof(float)); });
  }

  void round() {
    for_sums([](float* sums, void* gradient, int64_t n) { round_to_bfloat16(sums, n, static_cast<uint16_t*>(gradient)); });
  }

  void run_pass(int64_t number) {
    const Parts parts(p_, batch_, number, first_, past_, writes_rows_);
    const int64_t slot_floats = (p_.grad_k ? p_.tile * p_.dim : 0) + (p_.grad_v ? p_.tile * p_.value_dim : 0);
    slots_.make_room(static_cast<int64_t>(parts.slots.size()) * slot_floats);
    splits_.make_room(p_.grad_q ? parts.n_splits * p_.tile * p_.dim : 0);
    terms_.make_room(parts);
    const auto work = [&](int64_t i) {
      const Part& part = parts.parts[i];
      const Pass& pass = batch_.pass(number, part.key_head / p_.kv_heads);
      Task task = {0, 0, 0, part.past - part.first, (part.past_slot - part.first_slot) * slot_floats};
      for (int64_t s = part.first; s < part.past; ++s) {
        const Stretch& x = parts.stretches[s];
        task.tiles += x.end - x.begin;
        task.cut += count_cut(pass.kinds, x.begin, x.end);
      }
      return task;
    };
    team_.run(parts.parts.size(), BackwardRow<Kind>::scratch(p_, true), work, [&](int64_t i, Scratch& scratch) {
      read(number, parts, i, slot_floats, scratch);
    });
    terms_.add(parts);
    add_slots(number, parts, slot_floats);
    if (p_.grad_q) add_splits(number, parts);
  }

  void read(int64_t number, const Parts& parts, int64_t i, int64_t slot_floats, Scratch& scratch) {
    const Part& part = parts.parts[i];
    const Pass& pass = batch_.pass(number, part.key_head / p_.kv_heads);
    std::memset(slots_.get() + part.first_slot * slot_floats, 0,
                (part.past_slot - part.first_slot) * slot_floats * sizeof(float));
    const KeySums own = {key_floats() ? key_sums(part.key_head) : nullptr,
                         value_floats() ? value_sums(part.key_head) : nullptr, false};
    terms_.clear_part(i);
    BackwardRow<Kind> row(p_, pass, deltas_.get(), tables_, scratch);
    for (int64_t s = part.first; s < part.past; ++s) {
      const Stretch& stretch = parts.stretches[s];
      const int64_t head = stretch.unit % p_.heads;
      row.begin(stretch.unit / p_.heads, head, stretch.row, terms_.sums_of(i, head));
      for (int64_t at = stretch.begin; at < stretch.end; ++at) {
        const int32_t column = pass.columns[at];
        const int32_t slot = part.slot_of_column.empty() ? -1 : part.slot_of_column[column];
        row.read(column, pass.kinds[at], slot < 0 ? own : sums_of_slot(slot, slot_floats));
      }
      const Matrix gradient = row.finish();
      if (p_.grad_q) put_row(pass, stretch, gradient);
    }
  }

  KeySums sums_of_slot(int64_t slot, int64_t slot_floats) const {
    float* keys = slots_.get() + slot * slot_floats;
    float* values = keys + (p_.grad_k ? p_.tile * p_.dim : 0);
    return {p_.grad_k ? keys : nullptr, p_.grad_v ? values : nullptr, true};
  }

  // The gradient of a row's queries, or of a stretch of it, which is put apart.
  void put_row(const Pass& pass, const Stretch& stretch, const Matrix& rows) {
    if (stretch.split < 0) return put_queries(pass, stretch.unit, stretch.row, rows);
    float* to = splits_.get() + stretch.split * p_.tile * p_.dim;
    const int64_t count = queries_in(pass, stretch.row);
    for (int64_t i = 0; i < count; ++i) std::copy_n(rows.data + i * rows.row, p_.dim, to + i * p_.dim);
  }

  int64_t queries_in(const Pass& pass, int64_t row) const { return std::min(p_.tile, pass.n_queries - row * p_.tile); }

  void put_queries(const Pass& pass, int64_t unit, int64_t row, const Matrix& rows) {
    const int64_t first = row * p_.tile, count = queries_in(pass, row);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = pass.query_index ? pass.query_index[first + i] : first + i;
      const float* from = rows.data + i * rows.row;
      if (writes_rows_ && p_.is_bfloat16) {
        round_to_bfloat16(from, p_.dim, static_cast<uint16_t*>(p_.grad_q) + (unit * p_.n_queries + at) * p_.dim);
        continue;
      }
      float* to = query_sums(unit) + at * p_.dim;
      if (writes_rows_)
        std::copy_n(from, p_.dim, to);
      else
        for (int64_t d = 0; d < p_.dim; ++d) to[d] += from[d];
    }
  }

  void add_slots(int64_t number, const Parts& parts, int64_t slot_floats) {
    std::vector<size_t> firsts;  // of the slots of one tile of keys
    const std::vector<Slot>& slots = parts.slots;
    for (size_t i = 0; i < slots.size(); ++i)
      if (i == 0 || slots[i].key_head != slots[i - 1].key_head || slots[i].column != slots[i - 1].column) firsts.push_back(i);
    if (firsts.empty()) return;
    firsts.push_back(slots.size());
    const auto work = [&](int64_t i) {
      return Task{0, 0, 0, 0, static_cast<int64_t>(firsts[i + 1] - firsts[i]) * slot_floats};
    };
    team_.run(firsts.size() - 1, 0, work, [&](int64_t i, Scratch&) {
      for (size_t s = firsts[i]; s < firsts[i + 1]; ++s) add_slot(number, slots[s], sums_of_slot(slots[s].number, slot_floats));
    });
  }

  void add_slot(int64_t number, const Slot& slot, const KeySums& from) {
    const Pass& pass = batch_.pass(number, slot.key_head / p_.kv_heads);
    const int64_t first = slot.column * p_.tile, count = std::min(p_.tile, pass.n_keys - first);
    const auto add = [&](float* to, const float* rows, int64_t dim) {
      for (int64_t j = 0; j < count; ++j) {
        float* row = to + (pass.key_index ? pass.key_index[first + j] : first + j) * dim;
        for (int64_t d = 0; d < dim; ++d) row[d] += rows[j * dim + d];
      }
    };
    if (from.keys) add(key_sums(slot.key_head), from.keys, p_.dim);
    if (from.values) add(value_sums(slot.key_head), from.values, p_.value_dim);
  }

  void add_splits(int64_t number, const Parts& parts) {
    if (parts.cuts.empty()) return;
    const int64_t floats = p_.tile * p_.dim;
    const auto work = [&](int64_t i) { return Task{0, 0, 0, 0, (parts.cuts[i].past - parts.cuts[i].first) * floats}; };
    team_.run(parts.cuts.size(), 0, work, [&](int64_t i, Scratch&) {
      const Cut& cut = parts.cuts[i];
      const Pass& pass = batch_.pass(number, cut.unit / p_.heads);
      float* total = splits_.get() + cut.first * floats;
      const int64_t used = queries_in(pass, cut.row) * p_.dim;
      for (int64_t split = cut.first + 1; split < cut.past; ++split)
        for (int64_t j = 0; j < used; ++j) total[j] += splits_.get()[split * floats + j];
      put_queries(pass, cut.unit, cut.row, {total, p_.dim, 1});
    });
  }

  Gathered gathered_;
  const Problem& p_;
  Team& team_;
  const Batch batch_;
  const TermTables<Kind> tables_;
  const int64_t group_;
  const bool writes_rows_;  // gradients of queries, at once; else they are added up over the passes
  TermGradients<Kind> terms_;
  int64_t first_ = 0, past_ = 0;  // the key heads in work
  Sums deltas_, grad_q_, grad_k_, grad_v_, slots_, splits_;
};

}  // namespace

// How the rows of tiles of key heads are shared out among threads for the backward pass.
//
// A part is a run of rows of one key head, all its query heads side by side, so that a part reads a few keys only where
// the pattern is local; where a pass has islands enough, each is a part. The first part that reads a tile of keys adds to
// the sums of its head; each later one has sums of its own for that tile, a slot, and the slots are added in the order of
// the parts: no addition waits for chance.

#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <queue>
#include <vector>

#include "batch.hpp"
#include "interface.hpp"
#include "islands.hpp"

namespace {

constexpr int64_t kTileCost = 2;
constexpr int64_t kRowCost = 3;        // what a row costs besides its tiles: measured, 1.2 to 1.7 tiles
constexpr int64_t kSlotsPerTile = 4;   // slots that are cleared and added up in the time of a tile, about
constexpr int64_t kLeastPart = 32;     // a part costs at least so much, about: less is not worth a thread
constexpr int64_t kLeastStretch = 8;   // tiles between the places where a row may be cut, at least
constexpr int64_t kStretchesPerPart = 16;  // places in a part where a row may be cut, about

constexpr int64_t kIslandsPerThread = 20;  // at least, where islands are parts

struct Stretch {  // entries [begin, end) of a tile row of one head; split: its number among stretches of rows that are cut
  int64_t unit, row, begin, end, split;
};

struct Part {  // stretches [first, past), and where its slots are
  int64_t key_head, number, cost, first, past, first_slot, past_slot;  // number: in its head
  std::vector<int32_t> slot_of_column;  // empty: it is the first to read every column; -1: it is the first to read this
};

struct Cut {  // a row whose stretches are in several parts
  int64_t unit, row, first, past;
};

struct Slot {
  int64_t key_head, column, number;
};

// How long `threads` threads take for n[i] tasks that cost cost[i] / n[i], for all i.
inline double greedy_time(const std::vector<int64_t>& cost, const std::vector<int64_t>& n, int64_t threads) {
  std::vector<double> tasks;
  for (size_t i = 0; i < cost.size(); ++i) tasks.insert(tasks.end(), n[i], static_cast<double>(cost[i]) / n[i]);
  std::sort(tasks.rbegin(), tasks.rend());
  std::priority_queue<double, std::vector<double>, std::greater<double>> free_at;
  for (int64_t i = 0; i < threads; ++i) free_at.push(0);
  double last = 0;
  for (const double task : tasks) {
    const double ends = free_at.top() + task;
    free_at.pop();
    free_at.push(ends);
    last = std::max(last, ends);
  }
  return last;
}

// Into how many parts to cut each head: as few as keep the threads busy for 95% of the time, whole heads if they do.
inline std::vector<int64_t> count_parts(const std::vector<int64_t>& cost, int64_t threads) {
  constexpr int64_t kMostPerThread = 8;
  int64_t total = 0;
  for (const int64_t x : cost) total += x;
  std::vector<int64_t> best(cost.size(), 1);
  double shortest = greedy_time(cost, best, threads);
  for (int64_t per_thread = 1; per_thread <= kMostPerThread && total < 0.95 * threads * shortest; ++per_thread) {
    const int64_t goal = std::max(kLeastPart, total / (threads * per_thread));
    std::vector<int64_t> n;
    for (const int64_t x : cost) n.push_back(std::max<int64_t>(1, (x + goal / 2) / goal));
    const double time = greedy_time(cost, n, threads);
    if (time >= 0.98 * shortest) continue;
    shortest = time;
    best = n;
  }
  return best;
}

class Parts {
 public:
  // Key heads [first, past) in a pass; `with_empty`: rows without tiles are listed too.
  Parts(const Problem& p, const Batch& batch, int64_t number, int64_t first, int64_t past, bool with_empty)
      : p_(p), group_(p.heads / p.kv_heads), with_empty_(with_empty) {
    std::vector<std::vector<Stretch>> rows;
    std::vector<int64_t> costs;
    std::vector<std::vector<double>> islands;  // their costs
    for (int64_t key_head = first; key_head < past; ++key_head) {
      const Pass& pass = batch.pass(number, key_head / p.kv_heads);
      rows.push_back(rows_of_head(pass, key_head));
      islands.push_back(costs_of_islands(islands_of(p, pass), rows.back()));
      costs.push_back(0);
      for (const Stretch& row : rows.back()) costs.back() += cost(row);
    }
    const std::vector<int64_t> counts = count_parts(costs, std::max(1, p.threads));
    for (int64_t i = 0; i < past - first; ++i) {
      const Pass& pass = batch.pass(number, (first + i) / p.kv_heads);
      if (counts[i] < static_cast<int64_t>(islands[i].size()) && are_short(islands[i], costs)) {
        const size_t begin = parts.size();
        cut_head(first + i, rows[i], costs[i], islands[i]);
        find_slots(pass, begin);
      } else {
        share_out(pass, first + i, rows[i], costs[i], counts[i]);
      }
    }
    std::stable_sort(parts.begin(), parts.end(), [&](const Part& a, const Part& b) {
      const int64_t one = a.key_head / p.kv_heads, other = b.key_head / p.kv_heads;
      return one < other || (one == other && a.number < b.number);
    });
    put_long_ones_first(parts, p.threads, [](const Part& part) { return part.cost; });
    std::stable_sort(slots.begin(), slots.end(), [](const Slot& a, const Slot& b) {
      return a.key_head < b.key_head || (a.key_head == b.key_head && a.column < b.column);
    });
  }

  std::vector<Stretch> stretches;
  std::vector<Part> parts;
  std::vector<Cut> cuts;
  std::vector<Slot> slots;  // those of one tile of keys side by side, in the order of their parts
  int64_t n_splits = 0;

 private:
  static int64_t cost(const Stretch& x) { return kRowCost + kTileCost * (x.end - x.begin); }

  // Row by row, the query heads that share the key head side by side: they read the same keys.
  std::vector<Stretch> rows_of_head(const Pass& pass, int64_t key_head) const {
    std::vector<Stretch> rows;
    for (int64_t row = 0; row < pass.n_rows; ++row)
      for (int64_t unit = key_head * group_; unit < (key_head + 1) * group_; ++unit) {
        const int64_t* offsets = offsets_of(pass, unit % p_.heads);
        if (!offsets || (offsets[row] == offsets[row + 1] && !with_empty_)) continue;
        rows.push_back({unit, row, offsets[row], offsets[row + 1], -1});
      }
    return rows;
  }

  // Whether threads that take islands one by one end at about the same time.
  bool are_short(const std::vector<double>& islands, const std::vector<int64_t>& heads) const {
    const int64_t total = std::accumulate(heads.begin(), heads.end(), int64_t{0});
    return *std::max_element(islands.begin(), islands.end()) * kIslandsPerThread * std::max(1, p_.threads) <= total;
  }

  std::vector<double> costs_of_islands(const std::vector<int64_t>& begins, const std::vector<Stretch>& rows) const {
    std::vector<double> costs(begins.size() - 1, 0);
    size_t island = 0;
    for (const Stretch& row : rows) {
      while (row.row >= begins[island + 1]) ++island;
      costs[island] += cost(row);
    }
    return costs;
  }

  // `count` parts of about equal cost. What the slots of a part cost shows when it is cut; then all are cut once more,
  // those with many slots shorter. The first has none, and where keys are drawn at random, each other one has many.
  void share_out(const Pass& pass, int64_t key_head, const std::vector<Stretch>& rows, int64_t total, int64_t count) {
    const auto n_stretches = stretches.size(), n_parts = parts.size(), n_cuts = cuts.size(), n_slots = slots.size();
    const int64_t splits = n_splits;
    std::vector<double> shares(count, static_cast<double>(total) / count);
    cut_head(key_head, rows, total, shares);
    find_slots(pass, n_parts);
    if (slots.size() == n_slots) return;
    const auto slot_cost = [](size_t n) { return static_cast<double>(kTileCost) * n / kSlotsPerTile; };
    const double share = (total + slot_cost(slots.size() - n_slots)) / count, least = 0.25 * total / count;
    std::fill(shares.begin(), shares.end(), share);
    for (size_t i = n_parts; i < parts.size(); ++i)
      shares[parts[i].number] = std::max(least, share - slot_cost(parts[i].past_slot - parts[i].first_slot));
    stretches.resize(n_stretches), parts.resize(n_parts), cuts.resize(n_cuts), slots.resize(n_slots);
    n_splits = splits;
    cut_head(key_head, rows, total, shares);
    find_slots(pass, n_parts);
  }

  // As many parts as `shares`, each with about its share of the cost. A row is cut only where it is long.
  void cut_head(int64_t key_head, const std::vector<Stretch>& rows, int64_t total, const std::vector<double>& shares) {
    const int64_t count = shares.size(), longest = std::max(kLeastStretch, total / (kTileCost * kStretchesPerPart * count));
    int64_t spent = 0, open = -1, number = 0;
    double end = shares[0];  // of the part `number`
    for (const Stretch& row : rows) {
      const size_t first = stretches.size();
      for (int64_t begin = row.begin; begin == row.begin || begin < row.end; begin += longest) {
        const Stretch here = {row.unit, row.row, begin, std::min(row.end, begin + longest), -1};
        const int64_t spends = kTileCost * (here.end - begin) + (begin == row.begin ? kRowCost : 0);
        // It goes to the part in which its middle lies.
        while (number + 1 < count && spent + 0.5 * spends >= end) end += shares[++number];
        spent += spends;
        if (number == open && stretches.size() > first) {
          stretches.back().end = here.end;
          parts.back().cost += spends;
          continue;
        }
        if (number != open) {
          const int64_t at = stretches.size();
          parts.push_back({key_head, number, 0, at, at, 0, 0, {}});
          open = number;
        }
        stretches.push_back(here);
        parts.back().past = stretches.size();
        parts.back().cost += spends;
      }
      if (stretches.size() - first > 1) mark_as_cut(first);
    }
  }

  void mark_as_cut(size_t first) {
    cuts.push_back({stretches[first].unit, stretches[first].row, n_splits, n_splits});
    for (size_t i = first; i < stretches.size(); ++i) stretches[i].split = n_splits++;
    cuts.back().past = n_splits;
  }

  // Slots of the parts from `begin` on, which are those of one head.
  void find_slots(const Pass& pass, size_t begin) {
    const size_t columns = (pass.n_keys + p_.tile - 1) / p_.tile;
    std::vector<int64_t> reader(columns, -1);  // the part that is the first to read a column
    for (size_t i = begin; i < parts.size(); ++i) {
      Part& part = parts[i];
      part.first_slot = slots.size();
      for (int64_t s = part.first; s < part.past; ++s)
        for (int64_t at = stretches[s].begin; at < stretches[s].end; ++at) {
          const int32_t column = pass.columns[at];
          if (reader[column] < 0) reader[column] = i;
          if (reader[column] == static_cast<int64_t>(i)) continue;
          if (part.slot_of_column.empty()) part.slot_of_column.assign(columns, -1);
          if (part.slot_of_column[column] >= 0) continue;
          part.slot_of_column[column] = slots.size();
          slots.push_back({part.key_head, column, static_cast<int64_t>(slots.size())});
        }
      part.past_slot = slots.size();
    }
  }

  const Problem& p_;
  const int64_t group_;
  const bool with_empty_;
};

}  // namespace

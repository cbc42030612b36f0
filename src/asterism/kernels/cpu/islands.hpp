// Runs of rows that share no keys with others, such as the documents of a packed row or the residues of a stride.
//
// The heads of a token lie side by side in memory. Where rows of one head read a few keys only, it is best to go through
// the same rows of all heads before the next ones: pages and lines that one head touches serve the others too.

#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "batch.hpp"

namespace {

constexpr int64_t kIslandRows = 16;  // at least, where there are so many: shorter ones are joined

// Where islands begin, and past the last row. Heads that have different tiles, or none, make one island of all rows.
inline std::vector<int64_t> islands_of(const Problem& p, const Pass& pass) {
  const int32_t list = p.heads ? pass.list_of_head[0] : -1;
  if (list < 0 || !std::all_of(pass.list_of_head, pass.list_of_head + p.heads, [&](int32_t x) { return x == list; }))
    return {0, pass.n_rows};
  const int64_t* offsets = offsets_of(pass, 0);
  constexpr int32_t kNone = std::numeric_limits<int32_t>::max();
  std::vector<int32_t> least(pass.n_rows + 1, kNone);  // key tile of this row and of all after it
  for (int64_t row = pass.n_rows; row-- > 0;)
    least[row] = offsets[row] < offsets[row + 1] ? std::min(least[row + 1], pass.columns[offsets[row]]) : least[row + 1];
  std::vector<int64_t> begins = {0};
  int32_t largest = -1;  // key tile of the rows before
  for (int64_t row = 0; row < pass.n_rows; ++row) {
    if (row - begins.back() >= kIslandRows && largest < least[row]) begins.push_back(row);
    if (offsets[row] < offsets[row + 1]) largest = std::max(largest, pass.columns[offsets[row + 1] - 1]);
  }
  begins.push_back(pass.n_rows);
  return begins;
}

// Puts first what takes long, the longest before the others, so that no thread is left with it at the end; the rest stays
// in its order, in which neighbours read the same keys.
template <class Task, class Cost>
void put_long_ones_first(std::vector<Task>& tasks, int64_t threads, Cost cost) {
  constexpr int64_t kLate = 64;  // a thread may end later than the others by such a share of its time
  int64_t total = 0;
  for (const Task& task : tasks) total += cost(task);
  const int64_t longest = total / (kLate * std::max<int64_t>(1, threads));
  const auto rank = [&](const Task& task) { return cost(task) > longest ? cost(task) : 0; };
  std::stable_sort(tasks.begin(), tasks.end(), [&](const Task& a, const Task& b) { return rank(a) > rank(b); });
}

}  // namespace

// Loops on several threads.

#pragma once

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <cstdint>
#include <exception>
#include <vector>

#include "interface.hpp"
#include "memory.hpp"

namespace {

// How a thread rounds and whether it flushes denormal numbers. Threads of a pool keep what their creator had when they
// started; which of them computes what is chance, so all take the caller's.
struct FloatingPoint {
  std::fenv_t environment;
  FloatingPoint() { std::fegetenv(&environment); }
};

class BorrowedFloatingPoint {
 public:
  explicit BorrowedFloatingPoint(const FloatingPoint& from) { std::fesetenv(&from.environment); }
  ~BorrowedFloatingPoint() { std::fesetenv(&own_.environment); }

 private:
  const FloatingPoint own_;
};

// Runs body(i, scratch) for 0 <= i < n on the threads of the problem, or of the slots. What one of them throws is thrown here, after all have
// ended: an exception that leaves a parallel region would end the process.
template <class Given, class Body>
void in_parallel(const Given& p, int64_t n, int64_t scratch_bytes, Body body) {
  if (n <= 1 || p.threads <= 1) {  // even a region of one thread costs as much as a short cache takes to read
    for (int64_t i = 0; i < n; ++i) {
      Scratch scratch(scratch_bytes, p.poison);
      body(i, scratch);
    }
    return;
  }
  const FloatingPoint callers;
  std::exception_ptr failure;
  std::atomic<bool> failed{false};
#pragma omp parallel num_threads(p.threads)
  {
    const BorrowedFloatingPoint borrowed(callers);
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < n; ++i) {
      if (failed) continue;
      try {
        Scratch scratch(scratch_bytes, p.poison);
        body(i, scratch);
      } catch (...) {
        if (!failed.exchange(true)) failure = std::current_exception();
      }
    }
  }
  if (failed) std::rethrow_exception(failure);
}

constexpr int64_t kChunkFloats = 1 << 15;  // cleared, added or rounded by one task, about

// The threads of a call. Its work is a sequence of phases, each a list of tasks that threads take in order as they become
// free; a phase begins when the one before has ended. Where `told` is given, the tasks are listed there and not done.
class Team {
 public:
  explicit Team(const Problem& p, std::vector<Task>* told = nullptr) : p_(p), told_(told) {}

  // A phase of n tasks: work(i) says what task i costs, body(i, scratch) does it.
  template <class Work, class Body>
  void run(int64_t n, int64_t scratch_bytes, Work work, Body body) {
    if (!told_) return in_parallel(p_, n, scratch_bytes, body);
    for (int64_t i = 0; i < n; ++i) {
      told_->push_back(work(i));
      told_->back().phase = phase_;
    }
    ++phase_;
  }

  // A phase that calls body(i, first, past) for pieces of the `tokens` tokens of each 0 <= i < n.
  template <class Body>
  void run_in_chunks(int64_t n, int64_t tokens, int64_t floats_per_token, Body body) {
    const int64_t step = std::max<int64_t>(1, kChunkFloats / std::max<int64_t>(1, floats_per_token));
    const int64_t chunks = (tokens + step - 1) / step;
    const auto past = [&](int64_t i) { return std::min(tokens, (i % chunks + 1) * step); };
    run(n * chunks, 0, [&](int64_t i) { return Task{0, 0, 0, 0, (past(i) - i % chunks * step) * floats_per_token}; },
        [&](int64_t i, Scratch&) { body(i / chunks, i % chunks * step, past(i)); });
  }

 private:
  const Problem& p_;
  std::vector<Task>* told_;
  int64_t phase_ = 0;
};

}  // namespace

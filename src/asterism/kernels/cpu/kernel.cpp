// Exact block-sparse attention on CPUs, forward and backward, over the tiles of a plan (compiler/plan.py): what Python
// calls.
//
// One row of tiles at a time: its queries are packed once, then its key tiles stream through. The headers' names are
// local to each translation unit (units.hpp).

#include <algorithm>
#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

#include "forked.hpp"
#include "interface.hpp"
#include "memory.hpp"
#include "units.hpp"

namespace {

// What a call returns; interface.py puts it into words. No exception may cross into Python: it would end the process.
enum Status : int32_t { kDone = 0, kNoMemory = 1, kNoThread = 2, kFault = 3 };

template <class Body>
Status guarded(Body body) {
  try {
    body();
    return kDone;
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  } catch (const std::length_error&) {
    return kNoMemory;
  } catch (const std::system_error&) {
    return kNoThread;
  } catch (...) {
    return kFault;
  }
}

// In a copy of a process (fork), OpenMP's threads are gone, but the thread that called it before still waits for them
// in its next parallel region, for ever. A thread of our own has no such past: it gets a new team.
template <class Body>
Status run(int32_t threads, Body body) {
  if (threads < 2 || !is_forked) return guarded(body);
  Status inner = kFault;
  const Status outer = guarded([&] { std::thread([&] { inner = guarded(body); }).join(); });
  return outer == kDone ? inner : outer;
}

using Computing = void(const Problem&, std::vector<Task>*);

Status run_in_dtype(const Problem& problem, Computing* amx, Computing* bfloat16, Computing* float32,
                    std::vector<Task>* told) {
  Computing* const compute = takes_amx(problem) ? amx : problem.is_bfloat16 ? bfloat16 : float32;
  return run(problem.threads, [&] { compute(problem, told); });
}

Status forward(const Problem& problem, std::vector<Task>* told = nullptr) {
  return run_in_dtype(problem, forward_amx, forward_bfloat16, forward_float32, told);
}

Status backward(const Problem& problem, std::vector<Task>* told = nullptr) {
  return run_in_dtype(problem, backward_amx, backward_bfloat16, backward_float32, told);
}

void wish_for_huge_results(const Problem& p) {
  const int64_t width = p.is_bfloat16 ? 2 : 4, queries = p.batch * p.heads * p.n_queries;
  wish_for_huge_pages(p.out, queries * p.value_dim * width);
  wish_for_huge_pages(p.residual, queries * p.value_dim * width);
}

void wish_for_huge_gradients(const Problem& p) {
  const int64_t width = p.is_bfloat16 ? 2 : 4, keys = p.batch * p.kv_heads * p.n_keys;
  wish_for_huge_pages(p.grad_q, p.batch * p.heads * p.n_queries * p.dim * width);
  wish_for_huge_pages(p.grad_k, keys * p.dim * width);
  wish_for_huge_pages(p.grad_v, keys * p.value_dim * width);
}

}  // namespace

// Writes out, residual and lse.
extern "C" int32_t asterism_forward(const Problem* problem) {
  wish_for_huge_results(*problem);
  return forward(*problem);
}

// Writes those of grad_q, grad_k and grad_v that are asked for.
extern "C" int32_t asterism_backward(const Problem* problem) {
  wish_for_huge_gradients(*problem);
  return backward(*problem);
}

// Adds the blocks chosen to out, residual and lse, which hold what was read before.
extern "C" int32_t asterism_forward_chosen(const Problem* problem, const Chosen* chosen) {
  return run(problem->threads, [&] { forward_chosen(*problem, *chosen); });
}

// Adds the gradients of the blocks chosen to what is there.
extern "C" int32_t asterism_backward_chosen(const Problem* problem, const Chosen* chosen) {
  return run(problem->threads, [&] { backward_chosen(*problem, *chosen); });
}

// Adds weights to the sums, from lse; v and out are not looked at.
extern "C" int32_t asterism_mass(const Problem* problem, const Mass* mass) {
  return run(problem->threads, [&] { mass_of_tiles(*problem, *mass); });
}

// Writes indices and counts.
extern "C" int32_t asterism_choose(const Choices* choices) {
  return run(choices->threads, [&] { choose_blocks(*choices); });
}

// Writes out and lse.
extern "C" int32_t asterism_decode(const Slots* slots) {
  Slots given = *slots;
  given.threads = threads_for(given);
  return run(given.threads, [&] { decode(given); });
}

// Which instructions multiply bfloat16 here. build.py says it to the user.
extern "C" const char* asterism_instruction_set() {
  if (const char* amx = amx_instruction_set()) return amx;
#if defined(__AVX512BF16__)
  return "avx512_bf16";
#elif defined(__AVX512F__)
  return "avx512";
#elif defined(__AVX2__)
  return "avx2";
#elif defined(__ARM_NEON)
  return "neon";
#else
  return "baseline";
#endif
}

// Lists the first `room` tasks of a forward or backward pass, phase by phase in the order in which threads take them, and
// counts all of them; computes nothing, and reads neither q, k, v nor what would be written.
extern "C" int32_t asterism_schedule(const Problem* problem, int32_t is_backward, Task* tasks, int64_t room,
                                     int64_t* count) {
  std::vector<Task> told;
  const Status status = is_backward ? backward(*problem, &told) : forward(*problem, &told);
  *count = told.size();
  std::copy_n(told.begin(), std::min<int64_t>(room, *count), tasks);
  return status;
}

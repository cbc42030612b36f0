// Products by AMX. Half of every register would be padding in tiles of 16, and rows with products by AMX know no terms:
// such calls go to the rows of vectors.

#include <stdexcept>

#include "amx.hpp"
#include "units.hpp"

#ifdef ASTERISM_AMX
#include "amx_backward_row.hpp"
#include "amx_forward_row.hpp"
#include "backward.hpp"
#include "forward.hpp"

ASTERISM_WITHIN void forward_amx(const Problem& problem, std::vector<Task>* told) {
  Team team(problem, told);
  Forward<AmxBFloat16>(problem, team).run();
}

ASTERISM_WITHIN void backward_amx(const Problem& problem, std::vector<Task>* told) {
  Team team(problem, told);
  Backward<AmxBFloat16>(problem, team).run();
}

ASTERISM_WITHIN bool takes_amx(const Problem& problem) {
  return problem.is_bfloat16 && !problem.terms && problem.tile % kStrip == 0 && amx::is_permitted();
}

ASTERISM_WITHIN const char* amx_instruction_set() { return amx::is_permitted() ? ASTERISM_AMX : nullptr; }

// Whether the compiler knew AMX and was to use it; whether the system lets it is another question.
extern "C" int32_t asterism_knows_amx() { return 1; }
#else
ASTERISM_WITHIN void forward_amx(const Problem&, std::vector<Task>*) { throw std::logic_error("no AMX"); }
ASTERISM_WITHIN void backward_amx(const Problem&, std::vector<Task>*) { throw std::logic_error("no AMX"); }
ASTERISM_WITHIN bool takes_amx(const Problem&) { return false; }
ASTERISM_WITHIN const char* amx_instruction_set() { return nullptr; }
extern "C" int32_t asterism_knows_amx() { return 0; }
#endif

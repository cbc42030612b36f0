#include "forward.hpp"
#include "units.hpp"

ASTERISM_WITHIN void forward_bfloat16(const Problem& problem, std::vector<Task>* told) {
  Team team(problem, told);
  Forward<BFloat16>(problem, team).run();
}

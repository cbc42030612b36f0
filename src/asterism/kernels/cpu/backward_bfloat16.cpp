#include "backward.hpp"
#include "units.hpp"

ASTERISM_WITHIN void backward_bfloat16(const Problem& problem, std::vector<Task>* told) {
  Team team(problem, told);
  Backward<BFloat16>(problem, team).run();
}

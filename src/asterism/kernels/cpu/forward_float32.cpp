#include "forward.hpp"
#include "units.hpp"

ASTERISM_WITHIN void forward_float32(const Problem& problem, std::vector<Task>* told) {
  Team team(problem, told);
  Forward<Float32>(problem, team).run();
}

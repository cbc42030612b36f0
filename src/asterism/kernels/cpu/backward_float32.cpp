#include "backward.hpp"
#include "units.hpp"

ASTERISM_WITHIN void backward_float32(const Problem& problem, std::vector<Task>* told) {
  Team team(problem, told);
  Backward<Float32>(problem, team).run();
}

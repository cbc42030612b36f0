#include "mass.hpp"
#include "units.hpp"

ASTERISM_WITHIN void mass_of_tiles(const Problem& problem, const Mass& mass) { add_mass(problem, mass); }

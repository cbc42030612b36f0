#include "chosen_backward.hpp"
#include "chosen_forward.hpp"
#include "choosing.hpp"
#include "units.hpp"

ASTERISM_WITHIN void forward_chosen(const Problem& problem, const Chosen& chosen) {
  if (problem.is_bfloat16)
    ForwardChosen<WidenedBFloat16>(problem, chosen).run();
  else
    ForwardChosen<Float32>(problem, chosen).run();
}

ASTERISM_WITHIN void backward_chosen(const Problem& problem, const Chosen& chosen) {
  if (problem.is_bfloat16)
    BackwardChosen<WidenedBFloat16>(problem, chosen).run();
  else
    BackwardChosen<Float32>(problem, chosen).run();
}

ASTERISM_WITHIN void choose_blocks(const Choices& choices) { Choosing(choices).run(); }

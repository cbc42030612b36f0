// What each translation unit but kernel.cpp holds: a direction in an arithmetic, AMX, the slots of a cache.
//
// Several units, because a compiler keeps one core busy with one. C's linkage lets them share the structures of
// interface.hpp, whose names are local to each; hidden, they are not shown to whoever loads the library.

#pragma once

#include <vector>

#include "interface.hpp"

#define ASTERISM_WITHIN extern "C" __attribute__((visibility("hidden")))

// A pass. Where `told` is given, its tasks are listed there, and nothing is computed.
ASTERISM_WITHIN void forward_float32(const Problem& problem, std::vector<Task>* told);
ASTERISM_WITHIN void forward_bfloat16(const Problem& problem, std::vector<Task>* told);
ASTERISM_WITHIN void backward_float32(const Problem& problem, std::vector<Task>* told);
ASTERISM_WITHIN void backward_bfloat16(const Problem& problem, std::vector<Task>* told);

// The same for problems that take AMX: its name is null where there is none, and then no problem does.
ASTERISM_WITHIN void forward_amx(const Problem& problem, std::vector<Task>* told);
ASTERISM_WITHIN void backward_amx(const Problem& problem, std::vector<Task>* told);
ASTERISM_WITHIN bool takes_amx(const Problem& problem);
ASTERISM_WITHIN const char* amx_instruction_set();

// Attention to blocks that queries chose, of the pairs of a plan of one pass in natural order.
ASTERISM_WITHIN void forward_chosen(const Problem& problem, const Chosen& chosen);
ASTERISM_WITHIN void backward_chosen(const Problem& problem, const Chosen& chosen);

// How much of their attention queries give to the keys of each tile of a pass.
ASTERISM_WITHIN void mass_of_tiles(const Problem& problem, const Mass& mass);

// The blocks of keys that queries choose.
ASTERISM_WITHIN void choose_blocks(const Choices& choices);

// A few queries against the slots of a cache, and how many threads such a call pays for.
ASTERISM_WITHIN void decode(const Slots& slots);
ASTERISM_WITHIN int32_t threads_for(const Slots& slots);

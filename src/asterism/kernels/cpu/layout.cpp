#include <cstddef>
#include <string>

#include "interface.hpp"

// Where each field lies, as kernels/cpu/interface.py says it too: a structure changed on one side only would be read at
// wrong places. Without streams of the standard library: in a process with another library that brings its own, as some
// builds of PyTorch do, writing a number to one crashes.
extern "C" const char* asterism_layout() {
  static const std::string text = [] {
    std::string lines = "group " + std::to_string(kGroup);
#define STRUCTURE(type) lines += "\n" #type " " + std::to_string(sizeof(type))
#define FIELD(type, name)                                                           \
  lines += "\n" #type "." #name " at " + std::to_string(offsetof(type, name)) + ", " + \
           std::to_string(sizeof(type::name)) + " bytes"
    STRUCTURE(Tensor);
    FIELD(Tensor, data), FIELD(Tensor, batch), FIELD(Tensor, head), FIELD(Tensor, token), FIELD(Tensor, feature);
    STRUCTURE(Pass);
    FIELD(Pass, query_index), FIELD(Pass, key_index), FIELD(Pass, n_queries), FIELD(Pass, n_keys), FIELD(Pass, n_rows);
    FIELD(Pass, row_offsets), FIELD(Pass, columns), FIELD(Pass, kinds), FIELD(Pass, list_of_head);
    STRUCTURE(Terms);
    FIELD(Terms, bias), FIELD(Terms, bias_heads), FIELD(Terms, bias_head), FIELD(Terms, bias_distance);
    FIELD(Terms, relative), FIELD(Terms, n_relative), FIELD(Terms, relative_distance), FIELD(Terms, relative_feature);
    FIELD(Terms, seed), FIELD(Terms, dropped_below), FIELD(Terms, softcap);
    FIELD(Terms, kept_factor), FIELD(Terms, grad_bias), FIELD(Terms, grad_relative);
    STRUCTURE(Problem);
    FIELD(Problem, batch), FIELD(Problem, heads), FIELD(Problem, kv_heads), FIELD(Problem, n_queries);
    FIELD(Problem, n_keys), FIELD(Problem, dim), FIELD(Problem, value_dim), FIELD(Problem, query_offset);
    FIELD(Problem, tile), FIELD(Problem, n_passes), FIELD(Problem, words), FIELD(Problem, passes);
    FIELD(Problem, masks), FIELD(Problem, live), FIELD(Problem, has_unread), FIELD(Problem, key_mask);
    FIELD(Problem, segments), FIELD(Problem, terms), FIELD(Problem, scale), FIELD(Problem, is_bfloat16);
    FIELD(Problem, threads), FIELD(Problem, poison), FIELD(Problem, q), FIELD(Problem, k), FIELD(Problem, v);
    FIELD(Problem, out), FIELD(Problem, residual), FIELD(Problem, lse), FIELD(Problem, grad_out);
    FIELD(Problem, grad_lse), FIELD(Problem, grad_q), FIELD(Problem, grad_k), FIELD(Problem, grad_v);
    STRUCTURE(Chosen);
    FIELD(Chosen, indices), FIELD(Chosen, heads), FIELD(Chosen, shares), FIELD(Chosen, width), FIELD(Chosen, block);
    FIELD(Chosen, query_block), FIELD(Chosen, delta);
    FIELD(Chosen, grad_q), FIELD(Chosen, grad_k), FIELD(Chosen, grad_v);
    STRUCTURE(Mass);
    FIELD(Mass, pass), FIELD(Mass, run), FIELD(Mass, entries), FIELD(Mass, to);
    STRUCTURE(Runs);
    FIELD(Runs, offsets), FIELD(Runs, bounds);
    STRUCTURE(Choices);
    FIELD(Choices, batch), FIELD(Choices, heads), FIELD(Choices, n_queries), FIELD(Choices, n_blocks);
    FIELD(Choices, dim), FIELD(Choices, row), FIELD(Choices, topk), FIELD(Choices, width), FIELD(Choices, q);
    FIELD(Choices, keys), FIELD(Choices, readable), FIELD(Choices, may), FIELD(Choices, must);
    FIELD(Choices, indices), FIELD(Choices, counts), FIELD(Choices, threads), FIELD(Choices, poison);
    STRUCTURE(Slots);
    FIELD(Slots, batch), FIELD(Slots, heads), FIELD(Slots, kv_heads), FIELD(Slots, n_queries), FIELD(Slots, n_slots);
    FIELD(Slots, dim), FIELD(Slots, value_dim), FIELD(Slots, q), FIELD(Slots, k), FIELD(Slots, v);
    FIELD(Slots, allowed), FIELD(Slots, before), FIELD(Slots, bias), FIELD(Slots, sinks), FIELD(Slots, out);
    FIELD(Slots, lse), FIELD(Slots, scale), FIELD(Slots, softcap), FIELD(Slots, is_bfloat16), FIELD(Slots, threads);
    FIELD(Slots, poison);
    STRUCTURE(Task);
    FIELD(Task, phase), FIELD(Task, tiles), FIELD(Task, cut), FIELD(Task, rows), FIELD(Task, floats);
#undef FIELD
#undef STRUCTURE
    return lines;
  }();
  return text.c_str();
}

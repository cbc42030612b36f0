// What Python gives and C++ takes. interface.py says the same, and compares asterism_layout() (layout.cpp) when it loads
// the library.

#pragma once

#include <cstdint>

namespace {

constexpr int kGroup = 16;  // queries, or keys, that are skipped together in tiles with masks

extern "C" {

struct Tensor {  // [batch, heads, tokens, features], strides in elements
  void* data;
  int64_t batch, head, token, feature;
};

struct Pass {
  const int32_t *query_index, *key_index;  // null: natural order
  int64_t n_queries, n_keys, n_rows;
  const int64_t* row_offsets;   // [lists, n_rows + 1]
  const int32_t *columns, *kinds;
  const int32_t* list_of_head;  // [heads]; -1: the head has no part in the pass
};

struct Terms {  // of scores and weights (kernels/terms/terms.py); null or 0 for what a call does not have
  const float* bias;  // [bias_heads, n_queries + n_keys - 1] by distance, from query_offset - (n_keys - 1) on; strides
                      // in elements, bias_heads 1 or heads
  int64_t bias_heads, bias_head, bias_distance;
  const void* relative;  // [n_relative, dim] in the dtype of q, strides in elements: what keys have by distance
  int64_t n_relative, relative_distance, relative_feature;
  int64_t seed, dropped_below;  // a pair is dropped if its random word, of 32 bits, is below
  float softcap, kept_factor;   // by kept_factor the weights are multiplied that are not dropped
  float* grad_bias;             // contiguous, like bias and relative; null: not asked for
  void* grad_relative;
};

struct Problem {
  int64_t batch, heads, kv_heads, n_queries, n_keys, dim, value_dim, query_offset;
  int64_t tile, n_passes, words;
  const Pass* passes;
  const uint64_t* masks;  // [masks, key of the tile, words]: bit i says whether query i may read the key
  const uint8_t* live;       // [masks + 1, tile / kGroup, 2]: by kind, the first group of keys that a group of queries
                             // may read, and the one after the last
  const uint8_t* has_unread; // [masks + 1]: by kind, whether there are keys that no query of the tile may read
  const uint8_t* key_mask;   // [batch, n_keys] or null
  const int64_t* segments;   // [batch, n_keys] or null
  const Terms* terms;        // null: none, and nothing is asked about them then
  float scale;
  int32_t is_bfloat16, threads, poison;
  Tensor q, k, v;
  void *out, *residual;  // contiguous, in the dtype of q; residual only for bfloat16
  float* lse;
  Tensor grad_out;  // from here on for the backward pass only
  const float* grad_lse;
  void *grad_q, *grad_k, *grad_v;  // null: not asked for
};

struct Chosen {  // blocks of keys that queries chose; all contiguous
  const int32_t* indices;  // [batch, heads, shares, width]: the blocks of a share of queries, ascending, then -1
  int64_t heads, shares, width, block, query_block;  // heads: 1, or the problem's key heads, or its heads
  const float* delta;  // like lse: rowsum(grad_out * out) - gradient of lse; from here on for the backward pass only
  float *grad_q, *grad_k, *grad_v;  // like q, k and v: what is added to
};

struct Mass {  // the attention that runs of queries give to runs of keys, added up tile by tile
  int64_t pass, run, entries;  // which pass; tokens of a run, which divide a tile; entries of the pass
  float* to;                   // contiguous, [batch, heads, entries, tile / run, tile / run], from 0
};

struct Runs {  // a set of blocks for each query: runs [offsets[i], offsets[i + 1]), from bounds[0] to before bounds[1]
  const int64_t* offsets;
  const int32_t* bounds;
};

struct Choices {  // queries against what stands for blocks of keys, in floats; all contiguous
  int64_t batch, heads, n_queries, n_blocks, dim, row, topk, width;
  const float* q;           // [batch, heads, n_queries, dim]
  const float* keys;        // [batch, heads, dim, row]: n_blocks and what pads them to whole vectors
  const uint8_t* readable;  // [batch, n_blocks] or null
  Runs may, must;           // what a query may choose, and what it has in any case
  int32_t *indices, *counts;  // [batch, heads, n_queries, width], [batch, heads, n_queries]
  int32_t threads, poison;
};

struct Slots {  // a few queries against the slots of a cache
  int64_t batch, heads, kv_heads, n_queries, n_slots, dim, value_dim;
  Tensor q, k, v;  // features of k and v next to each other
  Tensor allowed;  // [batch, head, query, slot] of bytes: whether a query may read a slot
  Tensor before, bias;  // the same of floats, or null: added to q . k, and to the scores
  const float* sinks;   // [heads] or null
  void* out;            // contiguous, in the dtype of q
  float* lse;           // contiguous or null
  float scale, softcap;  // softcap 0: none
  int32_t is_bfloat16, threads, poison;
};

struct Task {  // what a thread does in one go
  int64_t phase;
  int64_t tiles, cut;  // tiles computed, and those of them of which the batch forbids a part
  int64_t rows;        // rows of tiles, or parts of rows
  int64_t floats;      // numbers cleared, added or rounded apart from tiles
};
}

// Whether gradients of scores are needed: those of the values alone need only the weights.
inline bool needs_score_gradients(const Problem& p) {
  return p.grad_q || p.grad_k || (p.terms && (p.terms->grad_bias || p.terms->grad_relative));
}

}  // namespace

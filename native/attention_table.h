// What an instruction set offers for attention: a tile of query rows against a chunk of packed keys and values.
#pragma once
#include "table.h"

namespace osm {

constexpr int64_t kMostFeatures = 1024;  // of a head
constexpr int64_t kMostKeys = 1024;      // of a chunk

// What a row of O is relative to: O = sum of exp(score - pivot) * v, with the pivot near the row's greatest score.
struct AttentionState {
  double pivot, sum;
};

// What one query row may see of the chunk, and what is added to its scores. Pointers are to the chunk's first key.
struct AttentionRow {
  int64_t lo, hi;       // keys [lo, hi)
  const uint8_t* mask;  // nonzero takes part; or null
  int64_t mask_step;    // bytes
  const char* bias;     // in the format products are made in; or null
  int64_t bias_step;
  double slope;  // ALiBi: slope * |away + key| is subtracted
  int64_t away;
};

struct AttentionBlock {
  int count;  // query rows
  int64_t keys, d, dv;
  const void *q, *k, *v;  // packed
  int64_t q_stride;       // elements, as the other strides here
  double scale, softcap;  // softcap 0: none
  bool finite;            // all values are
  const AttentionRow* rows;
  AttentionState* states;
  void* o;
  int64_t o_stride;
  void* scores;  // count x score_stride of scratch
  int64_t score_stride;
};

struct AttentionKernels {
  int64_t panel, width;  // columns of a packed panel, lanes of a vector
  int64_t size;          // of an element that products are made of
  void (*pack_q)(const char* row, int64_t step, int64_t d, void* to);
  void (*pack_k)(const char* p, int64_t row, int64_t step, int64_t n, int64_t d, void* to);
  bool (*pack_v)(const char* p, int64_t row, int64_t step, int64_t n, int64_t d, void* to);
  void (*block)(const AttentionBlock&);
  void (*merge)(AttentionState* a, void* a_o, const AttentionState* b, const void* b_o, int64_t width);
  void (*finish)(const void* row, double by, int64_t n, char* to, int64_t step);
};

// By name of the instruction set and Dtype.
const AttentionKernels& attention_kernels_of(const Isa& isa, Dtype dtype);

}  // namespace osm

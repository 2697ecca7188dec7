// Attention of strided arrays: what a caller asks for, and run_attention() to do it.
#pragma once
#include <cstdint>

#include "attention_table.h"

namespace osm {

// (batch, heads, length, features), strides in bytes.
struct AttentionArray {
  const char* p = nullptr;
  int64_t strides[4] = {};
};

struct AttentionProblem {
  Dtype dtype = Dtype::f32;
  const Isa* isa = nullptr;
  int threads = 1;
  int64_t batch = 0, heads = 0, groups = 0;  // groups: heads of k and v
  int64_t queries = 0, keys = 0, d = 0, dv = 0;
  AttentionArray q, k, v, o;
  double scale = 1, softcap = 0;
  // Query i sees the keys j with i + diagonal - left <= j <= i + diagonal + right.
  int64_t diagonal = 0, left = INT64_MAX, right = INT64_MAX;
  AttentionArray mask;             // one byte an element
  AttentionArray bias;             // float, of double operands double
  const double* slopes = nullptr;  // (batch, heads)
  const double* sinks = nullptr;   // (heads)
  void* lse = nullptr;             // (batch, heads, queries), row-major, or null
  bool single = false;             // lse in float
};

void run_attention(const AttentionProblem& problem);

}  // namespace osm

// Attention of strided arrays: what a caller asks for, and run_attention() and run_attention_gradient() to do it.
#pragma once
#include <cstdint>

#include "attention_table.h"

namespace osm {

// (batch, heads, length, features), strides in bytes.
struct AttentionArray {
  const char* p = nullptr;
  int64_t strides[4] = {};
};

// One sequence of the batch: where its queries and keys start on the length axes, and how many there are.
struct AttentionSequence {
  int64_t query, queries, key, keys;
};

struct AttentionProblem {
  Dtype dtype = Dtype::f32;
  Stored stored = Stored::f32;  // k and v
  const Isa* isa = nullptr;
  int threads = 1;
  int64_t batch = 0, heads = 0, groups = 0;  // groups: heads of k and v
  int64_t d = 0, dv = 0;
  const AttentionSequence* sequences = nullptr;  // one for each of batch
  AttentionArray q, k, v, o;
  bool wide = false;  // o is in the format products are made in
  // Paged keys: k and v are (blocks, heads, places of a block, features), and key j of a sequence lies in the block
  // that its row of the table names at j / block_size.
  const int64_t* blocks = nullptr;
  int64_t block_size = 0, blocks_stride = 0;
  double scale = 1, softcap = 0;
  // Query i sees the keys j with i + shift - left <= j <= i + shift + right; shift is keys - queries of the sequence
  // where lower_right, else 0 (but see placed).
  bool lower_right = true;
  int64_t left = INT64_MAX, right = INT64_MAX;
  AttentionArray mask;               // one byte an element
  AttentionArray bias;               // float, of double operands double
  const double* slopes = nullptr;    // (batch, heads)
  const double* sinks = nullptr;     // (heads)
  const double* k_scales = nullptr;  // (batch, groups): what k and v stand for is so many times what is stored
  const double* v_scales = nullptr;
  double drop = 0;  // dropout's probability
  uint64_t seed = 0;
  // Batch, head, query and key that the first of each of this call are, in a whole of which it is a part: dropout
  // counts from there, and where `placed` so do the distances of queries and keys, and shift is query - key.
  int64_t origin[4] = {};
  bool placed = false;
  AttentionArray lse;   // the last stride is not used; p null: not wanted
  bool single = false;  // lse in float
  // double, as lse: then lse has the pivot and this the log of the sum relative to it, so that nothing of a great lse
  // is rounded away; p null: not wanted.
  AttentionArray rest;
  // Where last_key is not 0: what keys [first_key, last_key) of each sequence alone come to, as raw sums. o has the sum
  // of weights * v, lse the pivot and rest the sum of the weights, 0 where a row sees none of these keys. Chunks count
  // from first_key on, so that a row's bits follow from these keys and the row.
  int64_t first_key = 0, last_key = 0;
  // Whether keys are summed super-tile by super-tile, in AttentionSums. Where level.p is not null these are added to
  // the sums there, of each query, and nothing else comes out; sinks do not count. The last strides are not used.
  bool any_order = false;
  AttentionArray level, bins, a, odd;
};

// The gradients beside the problem, whose o and lse are those of the forward. q_grad, k_grad and v_grad in the
// operands' format.
struct AttentionGradientProblem : AttentionProblem {
  AttentionArray d_out;
  AttentionArray d_lse;  // double; p null: 0
  AttentionArray q_grad, k_grad, v_grad;
  AttentionArray delta;  // double, written: sum of d_out * output less the gradient of lse; p null: not wanted
  // Of the bias, double or the format products are made in, zeros to begin with; p null: not wanted. A stride of 0
  // where an axis was broadcast.
  AttentionArray bias_grad;
  bool bias_grad_double = false;
};

void run_attention(const AttentionProblem& problem);
void run_attention_gradient(const AttentionGradientProblem& problem);

// Exact sums of `rows` rows one after another, f32 or f64: `to` becomes the merge of the two; and what they come to, o
// in the dtype.
void run_sums_merge(const Isa& isa, Dtype dtype, int threads, int64_t rows, int64_t dv, const AttentionSums& to,
                    const AttentionSums& from);
void run_sums_read(const Isa& isa, Dtype dtype, int threads, int64_t rows, int64_t dv, const AttentionSums& from,
                   char* o, double* lse);

// Flops a second of multiply-adds in registers, in the format that products of `dtype` are made in.
double arithmetic_peak(const Isa& isa, Dtype dtype, int threads);

// Which weights of a row dropout keeps: one byte a key from the first on, 1 or 0.
void attention_keep(double drop, uint64_t seed, int64_t batch, int64_t head, int64_t query, int64_t first, int64_t keys,
                    uint8_t* keep);

}  // namespace osm

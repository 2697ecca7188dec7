// What an instruction set offers for attention: a tile of query rows against a chunk of keys and values, forward and
// backward.
#pragma once
#include "same_log.h"
#include "table.h"

namespace osm {

constexpr int64_t kMostFeatures = 1024;  // of a head
constexpr int64_t kMostKeys = 1024;      // of a chunk
constexpr int64_t kGrain = 64;           // keys whose values are summed at a time

// What keys and values are stored in; the first four are those of Dtype.
enum class Stored : int { f32 = 0, f64 = 1, f16 = 2, bf16 = 3, e4m3 = 4, e5m2 = 5, int8 = 6 };
constexpr int kStored = 7;

// What a row of O is relative to: O = sum of exp(score - pivot) * v, with the pivot near the row's greatest score.
struct AttentionState {
  double pivot, sum;
};

// The sums of a row in whole numbers, whose merge no order changes: see online_softmax/attention_sums.py, which is
// their law. Entry 0 of bins, and of each slice of a, is the weight, the others are the features of O.
struct AttentionSums {
  void* level;    // in the format products are made in
  int32_t* bins;  // 1 + features
  int64_t* a;     // slices x (1 + features)
  uint8_t* odd;   // features
};
constexpr int64_t kSuperTile = 512;  // keys of a partial, counted from the sequence's first
constexpr int32_t kNoBin = INT32_MIN;
template <class S>
constexpr int kAttentionSlices = sizeof(S) == 4 ? 2 : 3;

// What one query row may see of the chunk, and what is added to its scores. Pointers are to the chunk's first key.
struct AttentionRow {
  int64_t lo, hi;       // keys [lo, hi)
  const uint8_t* mask;  // nonzero takes part; or null
  int64_t mask_step;    // bytes
  const char* bias;     // in the format products are made in; or null
  int64_t bias_step;
  double slope;  // ALiBi: slope * |away + key| is subtracted
  int64_t away;
  bool whole;        // all that the row may see lies in this chunk
  uint32_t dice[2];  // of dropout: what tells this row from others
};

// The keys of a chunk as they lie in memory: the addresses of their rows, and the bytes between features.
struct AttentionKeys {
  const char* const* rows;
  int64_t step;
};

// What both directions share.
struct AttentionScores {
  int count;         // query rows
  int64_t from, to;  // of the chunk's keys those that any row may see; from is a multiple of `group`
  int64_t d, dv;
  const void* q;          // rows, plain
  int64_t q_stride;       // elements, as the other strides here
  double scale, softcap;  // softcap 0: none
  const AttentionRow* rows;
  uint32_t drop;      // weights whose number lies below are dropped; 0: none
  int64_t first_key;  // place of the chunk's first key in its sequence
};

struct AttentionBlock : AttentionScores {
  const void *k, *v;           // packed; or null, and then
  AttentionKeys keys, values;  // they are packed piece by piece on the way, with room for a piece
  void (*pack_k)(const AttentionKeys& keys, int64_t from, int64_t n, int64_t d, void* to);
  bool (*pack_v)(const AttentionKeys& keys, int64_t from, int64_t n, int64_t d, void* to);
  void* room;      // for kGrain values or a panel of keys
  int64_t packed;  // keys that k and v were packed from
  bool finite;     // all values are
  uint8_t* live;   // count x kMostKeys of scratch: which keys count
  AttentionState* states;
  void* o;
  int64_t o_stride;
  void* scores;  // count x score_stride of scratch
  int64_t score_stride;
};

// Gradients of one tile by one chunk, added to what is there. The rows' weights are exp(score - lse).
struct AttentionGradient : AttentionScores {
  int64_t packed;
  const void *k, *vt;  // packed as keys: K, and V in the place of K
  const void* kv;      // K packed as values
  const void* d_out;   // rows, plain
  int64_t d_stride;
  const void *q_panels, *d_panels;  // q and d_out packed as values of `count` rows
  const double *lse, *rest;         // their sum is the log-sum-exp
  const double *d_lse, *delta;      // delta: sum of d_out * output, less the gradient of lse
  double kept;                      // what a weight that is not dropped is multiplied by
  bool finite;                      // all of q, d_out, K and V are
  void *dq_sum, *dk_sum, *dv_sum;   // of q's rows; of the chunk's keys
  int64_t dq_stride, dk_stride, dv_stride;
  char* const* d_bias;  // for each row, its gradients of the chunk's first key on; or null
  int64_t d_bias_step;  // bytes
  bool d_bias_double;
  bool scores_only;               // dq, dk and dv are not wanted
  uint8_t* live;                  // count x kMostKeys of scratch
  void *scores, *grads, *slopes;  // count x score_stride each; slopes one row
  int64_t score_stride;
};

struct AttentionKernels {
  int64_t panel, width;  // columns of a packed panel, lanes of a vector
  int64_t group;         // scores gone through at a time, whole panels: score_stride is a multiple
  int64_t size;          // of an element that products are made of
  void (*pack_q)(const char* row, int64_t step, int64_t d, void* to);
  // Keys as columns: panels of `panel` keys, each d x panel, the last filled up with zeros.
  void (*pack_k[kStored])(const AttentionKeys& keys, int64_t from, int64_t n, int64_t d, void* to);
  // Values as they are: panels of `panel` features, each n x panel. True where all of them are finite.
  bool (*pack_v[kStored])(const AttentionKeys& values, int64_t from, int64_t n, int64_t d, void* to);
  void (*block)(const AttentionBlock&);
  void (*gradient)(const AttentionGradient&);
  void (*merge)(AttentionState* a, void* a_o, const AttentionState* b, const void* b_o, int64_t width);
  // The sums with a partial of a super-tile too, O by `by`; and with the sums of others.
  void (*sums_add)(const AttentionSums& to, double pivot, double weight, const void* o, double by, int64_t dv);
  void (*sums_merge)(const AttentionSums& to, const AttentionSums& from, int64_t dv);
  void (*sums_read)(const AttentionSums& from, int64_t dv, void* o, double* lse);
  int slices;
  // n numbers of products * by, in the operands' format or as they are, `step` bytes apart.
  void (*finish)(const void* row, double by, int64_t n, char* to, int64_t step);
  void (*finish_wide)(const void* row, double by, int64_t n, char* to, int64_t step);
  double (*dot)(const char* a, int64_t a_step, const char* b, int64_t b_step, int64_t n);
  void (*add)(void* to, const void* from, int64_t n);  // to += from
  // As many multiply-adds as a product's inner loop keeps in registers, n times: what the arithmetic alone can do.
  // Returns how many flops that were.
  double (*peak)(int64_t n, double* sink);
};

// By name of the instruction set and Dtype.
const AttentionKernels& attention_kernels_of(const Isa& isa, Dtype dtype);

// The number of dropout that a key has in a row: uniform in 32 bits. One mixing of (row, key), made to be cheap in
// vectors; `dice` comes from seed, batch, head and query. The key comes in as key * kDieStep + dice[0].
constexpr uint32_t kDieStep = 0x9e3779b9u;
static inline __attribute__((always_inline)) uint32_t attention_die(uint32_t key, uint32_t dice1) {
  uint32_t x = (key ^ key >> 16) * 0x7feb352du;
  x = ((x ^ x >> 15) + dice1) * 0x846ca68bu;
  return x ^ x >> 16;
}

}  // namespace osm

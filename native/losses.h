// Cross-entropy of strided arrays of logits: what a caller asks for, and run_losses() to do it.
#pragma once
#include <cstdint>

#include "driver.h"
#include "losses_table.h"

namespace osm {

// What is kept of a row while its vocabulary lies in several places, one number a row; m null: not wanted.
struct LossParts {
  double *m = nullptr, *s = nullptr;  // of the classes but the target: sum of exp(z - m)
  double* target = nullptr;           // score of the target, NaN where it is not among these classes
  double* scores = nullptr;           // sum of weight * z over these classes; null: not wanted
  double* moment = nullptr;           // sum of exp(z - m) * z over the classes but the target; null: not wanted
};

struct LossProblem {
  Dtype dtype = Dtype::f32;
  const Isa* isa = nullptr;
  int threads = 1;
  int ndim = 0, axis = 0;  // of the classes
  int64_t shape[kMaxDims] = {};
  const char* x = nullptr;
  int64_t x_strides[kMaxDims] = {};  // bytes, as all strides
  char* y = nullptr;                 // gradient; null: not wanted
  int64_t y_strides[kMaxDims] = {};
  // Rows are numbered in the order of the other axes, row-major. All arrays of one number a row are in that order.
  const int64_t* target = nullptr;  // class, kNoTarget or kIgnored; null where there are probabilities
  const char* probabilities = nullptr;
  Dtype probabilities_dtype = Dtype::f32;
  int64_t p_strides[kMaxDims] = {};
  const double* class_weights = nullptr;  // null: 1
  const double* row_weights = nullptr;    // null: 1
  // A class counts `sharp` * (target or probability) + `uniform`, times its weight.
  double sharp = 1, uniform = 0;
  double z_loss = 0, softcap = 0, inverse_temperature = 1;
  // Gradients of a row's loss and lse: one a row, or one for all.
  const double *d_loss = nullptr, *d_lse = nullptr;
  bool d_loss_each = false;
  bool ignored_too = false;  // lse and riders of rows that take no part are wanted too
  // Results, null where not wanted.
  double *loss = nullptr, *lse = nullptr, *entropy = nullptr;
  int64_t* rank = nullptr;
  const int64_t* tokens = nullptr;  // (rows, tokens_count): classes whose log-probabilities are wanted
  int64_t tokens_count = 0;
  double* log_probabilities = nullptr;
  const char* other = nullptr;  // a second stream of logits, in the first's format
  int64_t other_strides[kMaxDims] = {};
  double* divergence = nullptr;  // of the first's distribution from the second's
  LossParts made;
  // Of the whole vocabulary, where these classes are a part of it (m null: they are all): m, s and target, with the sum
  // of all class weights and the weight of each row's target, 0 where it has none. With probabilities m and s are of
  // all classes, target is NaN, and target_weight the sum of all that the row's classes count. For the gradient alone.
  const double *whole_m = nullptr, *whole_s = nullptr, *whole_target = nullptr, *target_weight = nullptr;
  double weight_sum = 0;
};

void run_losses(const LossProblem& problem);

}  // namespace osm

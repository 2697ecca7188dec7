// What an instruction set offers for cross-entropy: rows of logits to their statistics and, in the same read, to the
// gradient. What becomes of the statistics is the caller's: one call of `settle` a row lies between the two.
#pragma once
#include "table.h"

namespace osm {

constexpr int64_t kNoTarget = -1;  // the row has none among these classes
constexpr int64_t kIgnored = -2;   // the row takes no part

// Of one row. The target is kept apart from the other classes: its loss is softplus(lse of the others - score) and its
// gradient the share of the others, so nothing cancels where the row is sure of it.
struct LossStats {
  double m, s;    // of the other classes: sum of exp(z - m), m some number near the greatest
  double target;  // score of the target; NaN where there is none
  double from;    // what the next two are relative to: m, rounded to the format of the exponentials
  double scores;  // sum of weight * (z - from) over all classes, where wanted
  double moment;  // sum of exp(z - m) * (z - from) over the other classes, where wanted
  int64_t rank;   // classes that come before the target in descending order, where wanted
};

// Gradient of a row: by * exp(z - m) - uniform * weight, and at the target a number of its own.
struct LossResult {
  double by, uniform, at_target;
};

struct LossJob {
  const char* x;
  char* y;  // null: no gradient
  int64_t rows, cols;
  int64_t x_stride, y_stride;
  const int64_t* target;  // one a row
  bool ignored_too;       // rows that take no part are read all the same
  bool stream;            // the gradient will not be read again soon
  // With any of these, or weights, a row is gone through by the richer loop.
  bool scores, moment, rank, uniform;
  // Of the classes, in the format of exponentials, in the order of loss_slot(), with kLossPadding numbers past the
  // last; null: 1. weights_stride in numbers: 0 where all rows share them.
  const void* weights;
  int64_t weights_stride;
  void* context;
  void (*settle)(void* context, int64_t row, const LossStats& stats, LossResult* result);
  // A row with a maximum that is not finite, a NaN, or an infinite sum of scores: all of it is the caller's.
  void (*odd)(void* context, int64_t row);
  char* scratch;  // loss_scratch() bytes, 64-byte aligned
};
constexpr int64_t kLossPadding = 128;

struct LossKernels {
  void (*rows)(const LossJob&);
  // Slot of a class among weights: kernels take pairs of registers apart as they are loaded.
  int64_t (*slot)(int64_t i);
  // Scores z = softcap(x) * inverse of n adjacent logits, in the format of exponentials, and with their slopes dz/dx
  // where `slopes` is not null. softcap 0: none.
  void (*scores)(const char* x, void* z, void* slopes, int64_t n, double softcap, double inverse);
  // y = gradient * slope, in the logits' format.
  void (*narrow)(const void* gradient, const void* slopes, char* y, int64_t n);
  // Greatest of n adjacent logits (no word on NaN), and the first place that has it; 0 where none has.
  int64_t (*greatest)(const char* x, int64_t n);
};

const LossKernels& loss_kernels_of(const Isa& isa, Dtype dtype);
int64_t loss_scratch(Dtype dtype, int64_t cols);

}  // namespace osm

// Matrix products of strided operands: what a caller asks for, and run_product() to do it.
#pragma once
#include <cstdint>

#include "product_table.h"

namespace osm {

// A matrix with any strides, in bytes.
struct Matrix {
  const char* p = nullptr;
  int64_t row = 0, col = 0;
  Dtype dtype = Dtype::f32;
};

// C (m x n) = A (m x k) * B (k x n) + bias, or that added to C. Products are made in double where all three are double,
// else in float, and 16-bit operands are widened as they are packed. C's columns are adjacent; in a 16-bit format it is
// rounded once, and cannot be added to.
struct ProductProblem {
  const Isa* isa = nullptr;
  int threads = 1;
  int64_t m = 0, n = 0, k = 0;
  Matrix a, b, c;
  bool add = false;
  bool fused = false;          // bits that every instruction set gives: multiply-adds round once
  const void* bias = nullptr;  // n numbers of the format that products are made in; or null. Not beside `add`.
};

void run_product(const ProductProblem& problem);

}  // namespace osm

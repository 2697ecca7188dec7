// What an instruction set offers for matrix products of any size.
#pragma once
#include "table.h"

namespace osm {

// Longest chain of multiply-adds: longer ones are cut into equal pieces, each summed from 0 on and then added to C,
// from left to right. So the bits of an element depend on its row, its column and their length alone.
constexpr int64_t kMostSteps = 384;

struct ProductBlock {
  int64_t rows, cols, steps;
  const void *a, *b;  // packed
  void* c;
  int64_t stride;  // elements between rows of C
  bool add;
};

struct ProductKernels {
  int64_t rows, cols;  // of the tile whose sums stay in registers
  int64_t size;        // of an element that products are made of
  // `count` lines of `steps` elements each, at most kMostSteps; `line` bytes lie between lines and `step` between the
  // elements of one. Into strips of `rows` lines, or of `cols`, each steps x lines, the last filled up with zeros, and
  // a vector of room behind them. Null for formats the products are not made for.
  void (*pack_a[kDtypes])(const char* p, int64_t line, int64_t step, int64_t count, int64_t steps, void* to);
  void (*pack_b[kDtypes])(const char* p, int64_t line, int64_t step, int64_t count, int64_t steps, void* to);
  void (*block)(const ProductBlock&);
  void (*fused)(const ProductBlock&);  // the same, each multiply-add rounded once on every instruction set
  void (*narrow[kDtypes])(const void* from, int64_t n, char* to);
};

// By the format that products are made in: that of double for Dtype::f64, else that of float.
const ProductKernels& product_kernels_of(const Isa& isa, Dtype dtype);

}  // namespace osm

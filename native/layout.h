// Strided arrays seen as rows: axes of length 1 dropped, axes that continue each other joined.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "driver.h"

namespace osm {

struct Dim {
  int64_t size;
  int64_t x, y, where, weights;  // strides in bytes
  int64_t result;                // stride in results
};

struct Place {
  int64_t x = 0, y = 0, where = 0, weights = 0, result = 0;
  int64_t inner = 0;  // index along the innermost outer axis
};

struct Layout {
  std::vector<Dim> outer, along;  // axes that are left, axes that are reduced; never empty
  int64_t rows = 1, cols = 1;
  bool alone = true;        // no axis is left: one row and no neighbours
  bool beside_one = false;  // one column of an array whose columns would lie side by side: see across()

  explicit Layout(const Problem& p) {
    int64_t result = 1;
    const int64_t size = (int64_t)dtype_size(p.dtype);
    for (int d = p.ndim - 1; d >= 0; --d) {
      const bool reduced = p.reduced >> d & 1;
      const Dim dim{p.shape[d],         p.x_strides[d],       p.y_strides[d],
                    p.where_strides[d], p.weights_strides[d], reduced ? 0 : result};
      if (!reduced) result *= p.shape[d];
      (reduced ? cols : rows) *= p.shape[d];
      if (!reduced && p.shape[d] == 1 && magnitude(p.x_strides[d]) % INT64_MAX <= size &&
          (p.reduced & ((uint64_t{1} << d) - 1)))
        beside_one = true;
      if (p.shape[d] != 1) (reduced ? along : outer).push_back(dim);
    }
    join(outer);
    join(along);
  }

  // Innermost outer axis: the one along which consecutive rows are taken.
  const Dim& inner() const { return outer.back(); }
  const Dim& side() const { return outer.back(); }

  Place place(int64_t row) const { return locate(outer, outer.size(), row); }
  // As place(), for the outer axes other than side().
  Place place_beside(int64_t index) const { return locate(outer, outer.size() - 1, index); }

  // Which of the two kinds a row is depends on x alone, and its bits on the kind.
  bool adjacent(int64_t size) const {
    return along.size() == 1 && !beside_one && (along[0].size == 1 || along[0].x == size);
  }
  bool adjacent_result(int64_t size) const { return along[0].size == 1 || along[0].y == size; }
  // One reduced axis whose elements are not adjacent: the rows of such arrays are summed lane by lane, whether their
  // neighbours lie beside them in memory (side_by_side) or have to be brought there. So is a single column, (n, 1),
  // although its elements are adjacent: its bits must not change when a second column joins it.
  bool across() const { return along.size() == 1; }
  bool side_by_side(int64_t size, bool writes) const {
    return across() && side().x == size && (!writes || side().y == size);
  }

  // The elements [from, from + n) of a row as runs along the innermost reduced axis.
  template <class F>
  void each_run(int64_t from, int64_t n, const F& f) const {
    const Dim& last = along.back();
    for (int64_t i = 0; i < n;) {
      const Place o = locate(along, along.size(), from + i);
      const int64_t count = std::min(n - i, last.size - o.inner);
      f(i, count, o, last);
      i += count;
    }
  }

 private:
  // Broadcast axes count as the largest: what is walked last must move through memory.
  static int64_t magnitude(int64_t stride) { return stride == 0 ? INT64_MAX : stride < 0 ? -stride : stride; }

  static void join(std::vector<Dim>& dims) {
    // Largest stride first, so that the innermost axis walks along memory. The order of rows is free; the order inside
    // a reduced group is fixed by the strides alone.
    std::stable_sort(dims.begin(), dims.end(),
                     [](const Dim& a, const Dim& b) { return magnitude(a.x) > magnitude(b.x); });
    std::vector<Dim> joined;
    for (const Dim& d : dims) {
      if (!joined.empty()) {
        Dim& big = joined.back();
        if (big.x == d.x * d.size && big.y == d.y * d.size && big.where == d.where * d.size &&
            big.weights == d.weights * d.size && big.result == d.result * d.size) {
          const int64_t size = big.size * d.size;
          big = d;
          big.size = size;
          continue;
        }
      }
      joined.push_back(d);
    }
    if (joined.empty()) joined.push_back({1, 0, 0, 0, 0, 0});
    dims = joined;
  }

  static Place locate(const std::vector<Dim>& dims, size_t count, int64_t index) {
    Place p;
    for (size_t k = count; k-- > 0;) {
      const Dim& d = dims[k];
      const int64_t i = index % d.size;
      index /= d.size;
      p.x += i * d.x, p.y += i * d.y, p.where += i * d.where, p.weights += i * d.weights, p.result += i * d.result;
      if (k + 1 == count) p.inner = i;
    }
    return p;
  }
};

}  // namespace osm

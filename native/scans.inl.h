// Log-sum-exps of pairs, and the table. Included inside the namespace of an instruction set, after elements.inl.h.
// Everything is computed in double and rounded once to the format of the result.

// clang-format off: each builds on the ones before it
#include "scans_double.inl.h"
#include "scans_near.inl.h"
#include "scans_prefix.inl.h"
#include "scans_window.inl.h"
#include "scans_groups.inl.h"
// clang-format on

// ---- pairs

// What pairs of a format are computed with: 16-bit ones in float, the others in double, float with shorter polynomials.
template <class T>
struct PairsOf {
  using V = F32;
  static constexpr int degree = 5;
};
template <>
struct PairsOf<float> {
  using V = F64;
  static constexpr int degree = 7;
};
template <>
struct PairsOf<double> {
  using V = F64;
  static constexpr int degree = 11;
};
// Below this the rounding of m + log1p(..) would show in the result; below the second, that of near_zero<false>().
template <class T>
constexpr double kNearZero = sizeof(T) == 8 ? 0.25 : 0x1p-6;
template <class T>
constexpr double kTiny = sizeof(T) == 8 ? 0x1p-11 : 0x1p-38;

// Pairs to be looked at once more, brought together from all over the run: few registers have one, none is full of
// them.
struct Pending {
  static constexpr int64_t kMost = 64, kRoom = kMost + 2 * pair_of<bf16>();
  alignas(64) double a[kRoom], b[kRoom], log1p[kRoom], y[kRoom];
  int64_t at[kRoom], count = 0;

  // Those in the lanes `odd`, of the slots of a pair of T from `slot` on; places past the end are nobody's.
  template <class T, class V>
  OSM_INLINE void hold(uint32_t odd, V p, V q, V log, V r, int64_t from, int64_t slot, int64_t end) {
    typename V::Scalar lanes[4][V::W];
    store(lanes[0], p), store(lanes[1], q), store(lanes[2], log), store(lanes[3], r);
    for (int k = 0; k < V::W; ++k) {
      const int64_t place = from + place_of<T>(slot + k);
      if (!(odd >> k & 1) || place >= end) continue;
      a[count] = lanes[0][k], b[count] = lanes[1][k], log1p[count] = lanes[2][k], y[count] = lanes[3][k];
      at[count++] = place;
    }
  }
  template <class T>
  void settle(T* to) {
    for (int64_t k = count; k < count + F64::W - 1; ++k) a[k] = b[k] = y[k] = log1p[k] = 1;
    for (int64_t k = 0; k < count; k += F64::W)
      store(y + k, odd_pairs(F64::load(a + k), F64::load(b + k), F64::load(log1p + k), F64::load(y + k), kNearZero<T>,
                             kTiny<T>));
    for (int64_t k = 0; k < count; ++k) narrow_run(y + k, to + at[k], 1);
    count = 0;
  }
};

// from: the place of the first of these pairs, whose run ends at `end`.
template <class T, int n, class V>
OSM_INLINE void add_pairs(const V (&a)[n], const V (&b)[n], V (&y)[n], Pending& pending, int64_t from, int64_t end) {
  constexpr uint32_t every = (uint32_t)((uint64_t{1} << V::W) - 1);
  V m[n], v[n];
  uint32_t odd[n], any = 0;
  OSM_EACH m[i] = max(a[i], b[i]);
  OSM_EACH v[i] = sub(a[i], b[i]);  // NaN where either is, and where both are the same infinity
  OSM_EACH v[i] = sub(V::set(0), max(sub(V::set(0), v[i]), v[i]));
  ExpDirect<V, PairsOf<T>::degree, sizeof(T) == 8>{0}(v);
  OSM_EACH v[i] = mul(v[i], V::set(Log2e<V>::unscale));
  log1p_below_1<T>(v);
  OSM_EACH {
    y[i] = add(m[i], v[i]);
    const V size = max(sub(V::set(0), y[i]), y[i]);
    odd[i] = (~above(size, V::set(kNearZero<T>)) & every) | above(size, V::set(kInf));
    any |= odd[i];
  }
  if (__builtin_expect(any != 0, 0))
    for (int i = 0; i < n; ++i)
      if (odd[i]) pending.hold<T>(odd[i], a[i], b[i], v[i], y[i], from, i * V::W, end);
}

template <class T>
void add_run(const T* a, const T* b, T* y, int64_t n) {
  using V = typename Of<T>::V;
  constexpr int64_t P = pair_of<T>();
  Pending pending;
  for (int64_t i = 0; i < n; i += P) {
    V p[2], q[2], r[2];
    const bool whole = n - i >= P;
    if (whole)
      load2(a + i, p[0], p[1]), load2(b + i, q[0], q[1]);
    else
      load_some(a + i, n - i, p[0], p[1]), load_some(b + i, n - i, q[0], q[1]);
    if constexpr (__is_same(V, typename PairsOf<T>::V)) {
      add_pairs<T>(p, q, r, pending, i, n);
    } else {
      F64 left[kQuads<T>], right[kQuads<T>], sums[kQuads<T>];
      split_pair<T>(p[0], p[1], left), split_pair<T>(q[0], q[1], right);
      add_pairs<T>(left, right, sums, pending, i, n);
      join_pair<T>(sums, r[0], r[1]);
    }
    if (whole)
      store2(y + i, r[0], r[1]);
    else
      store_some(y + i, n - i, r[0], r[1]);
    if (pending.count >= Pending::kMost) pending.settle(y);
  }
  if (pending.count) pending.settle(y);
}

template <class T>
constexpr ScanKernels scan_kernels() {
  return {
      [](const char* a, const char* b, char* y, int64_t n) { add_run((const T*)a, (const T*)b, (T*)y, n); },
      scan_row<T>,
      scan_cols<T>,
      scan_window<T>,
      scan_gradient<T>,
      scan_groups<T>,
      [](const double* from, char* to, int64_t n) { narrow_run(from, (T*)to, n); },
  };
}

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

  OSM_INLINE void hold(uint32_t odd, F64 p, F64 q, F64 log, F64 r, const int64_t* places, int64_t end) {
    double lanes[4][F64::W];
    store(lanes[0], p), store(lanes[1], q), store(lanes[2], log), store(lanes[3], r);
    for (int k = 0; k < F64::W; ++k)
      if (odd >> k & 1 && places[k] < end) {
        a[count] = lanes[0][k], b[count] = lanes[1][k], log1p[count] = lanes[2][k], y[count] = lanes[3][k];
        at[count++] = places[k];
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

// i: of the first of these pairs, whose run ends at `end`.
template <class T, int n>
OSM_INLINE void add_pairs(const F64 (&a)[n], const F64 (&b)[n], F64 (&y)[n], Pending& pending, int64_t from,
                          int64_t end) {
  // For narrow results exponentials and logarithms good to 2^-33.
  constexpr int degree = sizeof(T) == 8 ? 11 : 7;
  F64 m[n], v[n];
  uint32_t odd[n], any = 0;
  OSM_EACH m[i] = max(a[i], b[i]);
  OSM_EACH v[i] = sub(a[i], b[i]);  // NaN where either is, and where both are the same infinity
  OSM_EACH v[i] = neg(max(neg(v[i]), v[i]));
  ExpDirect<F64, degree, sizeof(T) == 8>{0.0}(v);
  OSM_EACH v[i] = mul(v[i], F64::set(kUnscale));
  log1p_below_1<sizeof(T) == 8>(v);
  OSM_EACH {
    y[i] = add(m[i], v[i]);
    const F64 size = max(neg(y[i]), y[i]);
    odd[i] = (~above(size, F64::set(kNearZero<T>)) & kEvery) | above(size, F64::set(kInf));
    any |= odd[i];
  }
  if (__builtin_expect(any != 0, 0)) {
    for (int i = 0; i < n; ++i) {
      int64_t places[F64::W];
      for (int k = 0; k < F64::W; ++k) places[k] = from + place_of<T>(i * F64::W + k);
      if (odd[i]) pending.hold(odd[i], a[i], b[i], v[i], y[i], places, end);
    }
  }
}

template <class T>
void add_run(const T* a, const T* b, T* y, int64_t n) {
  using V = typename Of<T>::V;
  constexpr int64_t P = pair_of<T>();
  Pending pending;
  for (int64_t i = 0; i < n; i += P) {
    V a0, a1, b0, b1, y0, y1;
    const bool whole = n - i >= P;
    if (whole)
      load2(a + i, a0, a1), load2(b + i, b0, b1);
    else
      load_some(a + i, n - i, a0, a1), load_some(b + i, n - i, b0, b1);
    F64 p[kQuads<T>], q[kQuads<T>], r[kQuads<T>];
    split_pair<T>(a0, a1, p), split_pair<T>(b0, b1, q);
    add_pairs<T>(p, q, r, pending, i, n);
    join_pair<T>(r, y0, y1);
    if (whole)
      store2(y + i, y0, y1);
    else
      store_some(y + i, n - i, y0, y1);
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

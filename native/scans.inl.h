// Log-sum-exps of pairs, and the table. Included inside the namespace of an instruction set, after elements.inl.h.
// Everything is computed in double and rounded once to the format of the result.

// clang-format off: each builds on the ones before it
#include "scans_double.inl.h"
#include "scans_near.inl.h"
#include "scans_prefix.inl.h"
#include "scans_window.inl.h"
// clang-format on

// ---- pairs

// Below this the rounding of m + log1p(..) in double would show in the result.
template <class T>
constexpr double kNearZero = sizeof(T) == 8 ? 0.25 : 0x1p-20;

template <class T, int n>
OSM_INLINE void add_pairs(const F64 (&a)[n], const F64 (&b)[n], F64 (&y)[n]) {
  F64 m[n], v[n];
  uint32_t odd = 0;
  OSM_EACH m[i] = max(a[i], b[i]);
  OSM_EACH v[i] = sub(min(a[i], b[i]), m[i]);
  ExpFar<F64, 11>{0.0}(v);
  OSM_EACH v[i] = mul(v[i], F64::set(kUnscale));
  log1p_of(v);
  OSM_EACH {
    y[i] = add(m[i], v[i]);
    odd |= above(a[i], F64::set(kBiggest)) | above(b[i], F64::set(kBiggest)) | above(neg(m[i]), F64::set(kBiggest));
    odd |= ~beyond(y[i], kNearZero<T>) & kEvery;
  }
  if (__builtin_expect(odd != 0, 0)) {
    OSM_EACH {
      double p[F64::W], q[F64::W], r[F64::W];
      store(p, a[i]), store(q, b[i]), store(r, y[i]);
      for (int k = 0; k < F64::W; ++k) r[k] = odd_pair(p[k], q[k], r[k], kNearZero<T>);
      y[i] = F64::load(r);
    }
  }
}

template <class T>
void add_run(const T* a, const T* b, T* y, int64_t n) {
  using V = typename Of<T>::V;
  constexpr int64_t P = pair_of<T>();
  for (int64_t i = 0; i < n; i += P) {
    V a0, a1, b0, b1, y0, y1;
    const bool whole = n - i >= P;
    if (whole)
      load2(a + i, a0, a1), load2(b + i, b0, b1);
    else
      load_some(a + i, n - i, a0, a1), load_some(b + i, n - i, b0, b1);
    F64 p[kQuads<T>], q[kQuads<T>], r[kQuads<T>];
    split_pair<T>(a0, a1, p), split_pair<T>(b0, b1, q);
    add_pairs<T>(p, q, r);
    join_pair<T>(r, y0, y1);
    if (whole)
      store2(y + i, y0, y1);
    else
      store_some(y + i, n - i, y0, y1);
  }
}

template <class T>
constexpr ScanKernels scan_kernels() {
  return {
      [](const char* a, const char* b, char* y, int64_t n) { add_run((const T*)a, (const T*)b, (T*)y, n); },
      scan_row<T>,
      scan_cols<T>,
      scan_window<T>,
      scan_gradient<T>,
      [](const double* from, char* to, int64_t n) { narrow_run(from, (T*)to, n); },
  };
}

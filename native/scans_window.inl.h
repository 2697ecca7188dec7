// Log-sum-exps of windows that slide, and the gradient of those of prefixes. Included by scans.inl.h.

// ---- windows

// merge_tails() of native/state.h and the log of it, for n pairs of states; n is rounded up to whole groups.
OSM_INLINE void merge_block(const double* am, const double* at, const double* bm, const double* bt, double* lse,
                            int64_t n) {
  for (int64_t i = 0; i < n; i += kScanGrain) {
    F64 m[kScanGroup], v[kScanGroup], high[kScanGroup], low[kScanGroup];
    uint32_t odd = 0;
    for (int k = 0; k < kScanGroup; ++k) {
      const F64 a = F64::load(am + i + k * F64::W), b = F64::load(bm + i + k * F64::W);
      const F64 ta = F64::load(at + i + k * F64::W), tb = F64::load(bt + i + k * F64::W);
      const uint32_t second = above(b, a);
      m[k] = max(a, b);
      odd |= above(a, F64::set(kBiggest)) | above(b, F64::set(kBiggest)) | above(neg(m[k]), F64::set(kBiggest));
      v[k] = sub(min(a, b), m[k]);
      high[k] = select(second, tb, ta), low[k] = select(second, ta, tb);
    }
    ExpFar<F64, 11>{0.0}(v);
    for (int k = 0; k < kScanGroup; ++k) v[k] = fma(add(F64::set(1), low[k]), mul(v[k], F64::set(kUnscale)), high[k]);
    log1p_of(v);
    for (int k = 0; k < kScanGroup; ++k) store(lse + i + k * F64::W, add(m[k], v[k]));
    if (__builtin_expect(odd != 0, 0))
      for (int64_t k = i; k < i + kScanGrain; ++k) {
        const double a = am[k], b = bm[k], greatest = a > b ? a : b;
        if (a != a || b != b)
          lse[k] = __builtin_nan("");
        else if (greatest == kInf || greatest == -kInf)
          lse[k] = greatest;
      }
  }
}

// A state cannot be taken out of a sum: what leaves the window must never have been merged with what stays. The queue
// of two stacks does that: one holds the merged suffixes of a block of `window` entries, the other the merged prefix of
// the next block, and every window is one of the first and one of the second.
template <class T>
void scan_window(const ScanWindow& job) {
  ScanBuffers b;
  const int64_t w = job.window, blocks = (job.n + w - 1) / w, region = blocks * w;
  double *m = job.scratch, *t = m + region + kScanGrain;
  const T* x = (const T*)job.x;
  // Suffixes of the blocks that start one block before each of those of x; entry k is that of k - w.
  const int64_t from = job.back ? 0 : w;
  for (int64_t k = 0; k < (from < region ? from : region); ++k) m[k] = -kInf, t[k] = 0;
  for (int64_t k = region; k < region + kScanGrain; ++k) m[k] = -kInf, t[k] = 0;
  ScanChain chain;
  Restarts restarts{w, w};
  for (int64_t stop = region; stop > from;) {
    const int64_t n = stop - from < kScanBlock ? stop - from : kScanBlock;
    alignas(64) double forth[kScanBlock];
    widen_run(x + (stop - n - w), forth, n);
    for (int64_t k = 0; k < n; ++k) b.x[k] = forth[n - 1 - k];
    prefix_block<true>(b, n, chain, restarts);
    for (int64_t k = 0; k < n; ++k) m[stop - 1 - k] = b.m[k], t[stop - 1 - k] = b.t[k];
    stop -= n;
  }
  // The last window of a block is the block: of the one before it nothing is left.
  for (int64_t k = 0; k < region; k += w) m[k] = -kInf, t[k] = 0;
  m[region] = -kInf, t[region] = 0;
  chain = ScanChain{}, restarts = Restarts{w, w};
  for (int64_t i = 0; i < job.n; i += kScanBlock) {
    const int64_t n = job.n - i < kScanBlock ? job.n - i : kScanBlock;
    widen_run(x + i, b.x, n);
    prefix_block<true>(b, n, chain, restarts);
    // Element i ends the window that starts at i - w + 1.
    merge_block(m + i + 1, t + i + 1, b.m, b.t, b.e, n);
    narrow_run(b.e, (T*)job.y + i, n);
  }
}

// ---- gradient of prefixes
//
// With A_i = dy_i + A_{i+1} * exp(lse_i - lse_{i+1}) from the last element down, dx_i = A_i * exp(x_i - lse_i).
// Prefixes only grow, so no exponent is above 0, and a difference of two neighbours' roundings is not carried any
// further.
template <class T>
void scan_gradient(const ScanGradient& job) {
  ScanBuffers b;
  Restarts none;
  ScanChain c;
  const int64_t n = job.n;
  const T *x = (const T*)job.x, *dy = (const T*)job.dy;
  T* dx = (T*)job.dx;
  double* lse = job.scratch;
  for (int64_t i = 0; i < n; i += kScanBlock) {
    const int64_t here = n - i < kScanBlock ? n - i : kScanBlock;
    widen_run(x + i, b.x, here);
    prefix_block<false>(b, here, c, none);
    finish_block(b.m, b.t, b.e, here);
    __builtin_memcpy(lse + i, b.e, (size_t)here * 8);
  }
  const bool odd = n && !(lse[n - 1] <= kBiggest);
  // Prefixes of nothing but -inf have no gradient.
  int64_t first = 0;
  while (first < n && !odd && lse[first] == -kInf) ++first;
  const double fill = odd ? __builtin_nan("") : 0.0;
  for (int64_t i = 0; i < (odd ? n : first); ++i) narrow_run(&fill, dx + i, 1);
  if (odd) return;
  double sum = 0;
  alignas(64) double up[kScanBlock];
  for (int64_t stop = n; stop > first;) {
    const int64_t here = stop - first < kScanBlock ? stop - first : kScanBlock, i = stop - here;
    const int64_t padded = (here + kScanGrain - 1) / kScanGrain * kScanGrain;
    widen_run(x + i, b.x, here);
    widen_run(dy + i, up, here);
    for (int64_t k = 0; k < here; ++k) {
      b.t[k] = i + k + 1 < n ? lse[i + k] - lse[i + k + 1] : 0.0;
      b.m[k] = b.x[k] - lse[i + k];
    }
    for (int64_t k = here; k < padded; ++k) b.t[k] = b.m[k] = 0;
    exp_block(b.t, padded);
    exp_block(b.m, padded);
    for (int64_t k = here - 1; k >= 0; --k) {
      sum = up[k] + sum * b.t[k];
      b.e[k] = sum * b.m[k];
    }
    narrow_run(b.e, dx + i, here);
    stop = i;
  }
}

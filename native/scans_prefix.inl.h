// Log-sum-exps of every prefix of a row, and of columns. Included by scans.inl.h.
//
// The state is that of native/state.h with the greatest term taken out (Tail): lse = m + log1p(t). A push has a winner,
// the new maximum, and a loser, the lesser of the entry and the old maximum, whose exponential joins t. So a push takes
// one exponential, and those of a block are made side by side: what goes from one element to the next is a maximum and
// a sum. Terms are relative to a pivot that stays while the maximum rises: a row that rises all along (a ramp)
// multiplies no rounded factors together.

// ---- states of prefixes

struct LaneScan {
  F64 m, pivot, high, low, factor;
};

// One push a lane. x is finite or -inf.
OSM_INLINE void lane_push(F64 x, LaneScan& s) {
  const F64 none = F64::set(-kInf), one = F64::set(1);
  const F64 loser = min(x, s.m);
  F64 e[1] = {loser};
  exp_at(e, s.pivot);
  e[0] = keep_unequal(e[0], loser, none);
  const F64 sum = add(s.high, e[0]), back = sub(sum, s.high);
  s.low = add(s.low, add(sub(s.high, sub(sum, back)), sub(e[0], back)));
  s.high = sum;
  const uint32_t risen = above(x, s.m);
  if (!risen) return;
  const uint32_t fresh = risen & ~above(s.m, none);  // the first entry: it is the pivot
  s.m = max(x, s.m);
  F64 f[1] = {neg(s.m)};
  exp_at(f, neg(s.pivot));
  const uint32_t seen = above(s.m, none), far = seen & ~fresh & above(sub(s.m, s.pivot), F64::set(kRise));
  if (far) {
    const F64 scale = select(far, f[0], one);
    s.high = mul(s.high, scale), s.low = mul(s.low, scale);
  }
  s.pivot = select(far | fresh, s.m, s.pivot);
  s.factor = select(seen & ~(far | fresh), f[0], one);
}

struct ScanBuffers {
  alignas(64) double x[kScanBlock], m[kScanBlock], t[kScanBlock], e[kScanBlock];
};

// Where a scan starts anew: before the element at which `left` is 0, and every `period` elements from there on.
struct Restarts {
  int64_t left = INT64_MAX, period = INT64_MAX;
  OSM_INLINE bool here() {
    const bool now = left == 0;
    if (now) left = period;
    --left;
    return now;
  }
};

// What +inf and NaN make of the results from here on; the entries themselves are left out.
inline void put_aside(double* x, double* over, int64_t n, double& held, Restarts restarts) {
  for (int64_t i = 0; i < n; ++i) {
    if (restarts.here()) held = 0;
    if (!(x[i] <= kBiggest)) {
      held = x[i] != x[i] || held != held ? __builtin_nan("") : kInf;
      x[i] = -kInf;
    }
    over[i] = held;
  }
}

// The block element by element: where the maximum rises far above the pivot.
__attribute__((noinline)) inline void push_each(ScanBuffers& b, int64_t n, ScanChain& c, Restarts& restarts) {
  LaneScan s{F64::set(c.m), F64::set(c.pivot), F64::set(c.high), F64::set(c.low), F64::set(c.factor)};
  double first[F64::W];
  const auto lane = [&](F64 a) {
    store(first, a);
    return first[0];
  };
  for (int64_t i = 0; i < n; ++i) {
    if (restarts.here()) s.m = F64::set(-kInf), s.high = s.low = F64::set(0), s.factor = F64::set(1);
    lane_push(F64::set(b.x[i]), s);
    b.m[i] = lane(s.m), b.t[i] = lane(mul(add(s.high, s.low), s.factor));
  }
  c.m = lane(s.m), c.pivot = lane(s.pivot), c.high = lane(s.high), c.low = lane(s.low), c.factor = lane(s.factor);
}

// States after each of n <= kScanBlock entries b.x, into b.m and b.t; b.x and b.e are used up.
template <bool kRestarts>
OSM_INLINE void prefix_block(ScanBuffers& b, int64_t n, ScanChain& c, Restarts& restarts) {
  const int64_t padded = (n + kScanGrain - 1) / kScanGrain * kScanGrain;
  const F64 none = F64::set(-kInf);
  for (int64_t i = n; i < padded; ++i) b.x[i] = -kInf;
  uint32_t odd = 0;
  F64 top = none;
  for (int64_t i = 0; i < padded; i += F64::W) {
    const F64 x = F64::load(b.x + i);
    odd |= above(x, F64::set(kBiggest));
    top = max(top, x);
  }
  alignas(64) double over[kScanBlock];
  const bool patched = odd || c.over != 0;
  if (__builtin_expect(patched, 0)) {
    put_aside(b.x, over, n, c.over, restarts);
    top = none;
    for (int64_t i = 0; i < padded; i += F64::W) top = max(top, F64::load(b.x + i));
  }

  const bool level = (!kRestarts || restarts.left >= n) && !(hmax(top) > c.m);
  double m = c.m, pivot = c.pivot;
  const double* losers = b.x;
  bool far = false;
  if (level) {
    for (int64_t i = 0; i < padded; ++i) b.m[i] = m;
  } else {
    Restarts r = restarts;
    for (int64_t i = 0; i < n; ++i) {
      if constexpr (kRestarts)
        if (r.here()) m = -kInf;
      const double x = b.x[i];
      b.e[i] = x < m ? x : m;
      m = x > m ? x : m;
      b.m[i] = m;
    }
    for (int64_t i = n; i < padded; ++i) b.e[i] = -kInf, b.m[i] = m;
    losers = b.e;
    if (c.m == -kInf) {
      int64_t k = 0;
      while (k < n && b.m[k] == -kInf) ++k;
      pivot = k < n ? b.m[k] : 0;
    }
    if constexpr (kRestarts) {
      for (int64_t i = 0; i < n; ++i) far |= (b.m[i] - pivot > kRise) | ((pivot - b.m[i] > kRise) & (b.m[i] > -kInf));
    } else {
      far = m - pivot > kRise;
    }
  }
  if (__builtin_expect(far, 0)) {
    push_each(b, n, c, restarts);
    for (int64_t i = n; i < padded; ++i) b.m[i] = c.m, b.t[i] = 0;
  } else {
    const F64 p = F64::set(pivot), minus = neg(p);
    for (int64_t i = 0; i < padded; i += kScanGrain) {
      F64 v[kScanGroup], l[kScanGroup];
      for (int k = 0; k < kScanGroup; ++k) v[k] = l[k] = F64::load(losers + i + k * F64::W);
      exp_at(v, p);
      for (int k = 0; k < kScanGroup; ++k) store(b.e + i + k * F64::W, keep_unequal(v[k], l[k], none));
    }
    if (!level) {
      for (int64_t i = 0; i < padded; i += kScanGrain) {
        F64 v[kScanGroup];
        for (int k = 0; k < kScanGroup; ++k) {
          const F64 height = F64::load(b.m + i + k * F64::W);
          v[k] = neg(select(above(height, none), height, p));
        }
        exp_at(v, minus);
        for (int k = 0; k < kScanGroup; ++k) store(b.x + i + k * F64::W, v[k]);
      }
    }
    double high = c.high, low = c.low;
    for (int64_t i = 0; i < n; ++i) {
      if constexpr (kRestarts)
        if (restarts.here()) high = low = 0;
      const double e = b.e[i], sum = high + e, back = sum - high;
      low += (high - (sum - back)) + (e - back);
      high = sum;
      b.t[i] = high + low;
    }
    for (int64_t i = n; i < padded; ++i) b.t[i] = 0;
    if (level) {
      if (c.factor != 1.0)
        for (int64_t i = 0; i < padded; ++i) b.t[i] *= c.factor;
    } else {
      for (int64_t i = 0; i < padded; ++i) b.t[i] *= b.x[i];
      c.factor = b.x[n - 1];
    }
    c.m = m, c.pivot = pivot, c.high = high, c.low = low;
  }
  if (__builtin_expect(patched, 0))
    for (int64_t i = 0; i < n; ++i)
      if (over[i] != 0) b.m[i] = over[i], b.t[i] = 0;
}

// lse = m + log1p(t) of n states, n rounded up to whole groups.
OSM_INLINE void finish_block(const double* m, const double* t, double* lse, int64_t n) {
  for (int64_t i = 0; i < n; i += kScanGrain) {
    F64 v[kScanGroup];
    for (int k = 0; k < kScanGroup; ++k) v[k] = F64::load(t + i + k * F64::W);
    log1p_of(v);
    for (int k = 0; k < kScanGroup; ++k) store(lse + i + k * F64::W, add(F64::load(m + i + k * F64::W), v[k]));
  }
}

template <class T>
void scan_row(const ScanRow& job) {
  ScanBuffers b;
  Restarts none;
  ScanChain c = *job.chain;
  for (int64_t i = 0; i < job.n; i += kScanBlock) {
    const int64_t n = job.n - i < kScanBlock ? job.n - i : kScanBlock;
    widen_run((const T*)job.x + i, b.x, n);
    prefix_block<false>(b, n, c, none);
    if (!job.y) continue;
    double* result = b.e;
    if (job.exclusive) {
      finish_block(b.m, b.t, b.x, n);
      const double last = b.x[n - 1];
      for (int64_t k = n - 1; k > 0; --k) result[k] = b.x[k - 1];
      result[0] = c.before, c.before = last;
    } else {
      finish_block(b.m, b.t, result, n);
    }
    narrow_run(result, (T*)job.y + i, n);
  }
  *job.chain = c;
}

// ---- columns: a lane a column, and the same bits as rows

template <class T>
void scan_cols(const ScanCols& job) {
  constexpr int64_t W = F64::W;
  ScanLanesState s = *job.lanes;
  const int64_t padded = (job.count + kScanGrain - 1) / kScanGrain * kScanGrain;
  alignas(64) double x[kScanLanes], t[kScanLanes], lse[kScanLanes], shown[kScanLanes];
  bool patched = false;
  for (int64_t k = 0; k < padded; ++k) x[k] = -kInf, patched |= s.over[k] != 0;
  for (int64_t r = 0; r < job.n; ++r) {
    widen_run((const T*)(job.x + r * job.x_step), x, job.count);
    uint32_t odd = 0;
    for (int64_t k = 0; k < padded; k += W) odd |= above(F64::load(x + k), F64::set(kBiggest));
    if (__builtin_expect(odd != 0, 0)) {
      for (int64_t k = 0; k < job.count; ++k) put_aside(x + k, lse, 1, s.over[k], Restarts{});
      patched = true;
    }
    for (int64_t k = 0; k < padded; k += W) {
      LaneScan l{F64::load(s.m + k), F64::load(s.pivot + k), F64::load(s.high + k), F64::load(s.low + k),
                 F64::load(s.factor + k)};
      lane_push(F64::load(x + k), l);
      store(s.m + k, l.m), store(s.pivot + k, l.pivot), store(s.high + k, l.high), store(s.low + k, l.low);
      store(s.factor + k, l.factor);
      store(t + k, mul(add(l.high, l.low), l.factor));
    }
    if (!job.y) continue;
    finish_block(s.m, t, lse, padded);
    if (__builtin_expect(patched, 0))
      for (int64_t k = 0; k < job.count; ++k)
        if (s.over[k] != 0) lse[k] = s.over[k];
    const double* result = lse;
    if (job.exclusive) {
      for (int64_t k = 0; k < job.count; ++k) shown[k] = s.before[k], s.before[k] = lse[k];
      result = shown;
    }
    narrow_run(result, (T*)(job.y + r * job.y_step), job.count);
  }
  *job.lanes = s;
}

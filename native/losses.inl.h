// Cross-entropy of rows of adjacent logits: sums, and the gradient, by the sweeps of rows.inl.h. Included inside the
// namespace of an instruction set, after rows.inl.h and tanh.inl.h.

// Exponentials of a loss, which is in float whatever the logits are.
template <class T>
struct LossOf {
  using Main = typename Of<T>::Sum;
  static constexpr int degree = 5;
};
template <>
struct LossOf<float> {
  using Main = Of<float>::Main;
  static constexpr int degree = 6;
};
template <>
struct LossOf<double> {
  using Main = Of<double>::Main;
  static constexpr int degree = 11;
};

// The inverse of place_of(): slot of the pair's element j.
template <class T>
constexpr int64_t slot_of(int64_t j) {
  return place_of<T>(1) == 1 ? j : j % 2 ? pair_of<T>() / 2 + j / 2 : j / 2;
}

// What the richer loop sums beside the exponentials.
struct LossRiders {
  F64 scores = F64::set(0), moment = F64::set(0);
  double last = 0;  // scores of the row's end
  int64_t rank = 0;
};

// What it needs for that.
template <class T>
struct LossWants {
  using V = typename Of<T>::V;
  using S = typename Of<T>::S;
  bool scores, moment, rank;
  const S* weights;
  int64_t cols;
  V m, low;          // pivot, and what lies below it counts as nothing
  V before, behind;  // what a class has to be above to come before the target, on either side of it
  S score;           // of the target
  LossRiders* riders;
};

// Exponentials without the target's, whose place holds 0. What rides along is summed beside.
template <class T, class E, bool rich>
struct LossExp {
  using V = typename Of<T>::V;
  using S = typename Of<T>::S;
  // What a sum in float loses within a block is less than the loss, which is a float, can show.
  static constexpr bool kFoldEach = sizeof(T) == 8;
  static constexpr int64_t P = pair_of<T>(), W = V::W;
  E exp;
  int64_t target;
  LossWants<T> wants;

  template <int n>
  OSM_INLINE void operator()(V (&v)[n], int64_t at) const {
    V z[n];
    if constexpr (rich) OSM_EACH z[i] = v[i];
    exp(v);
    const bool here = (uint64_t)(target - at) < (uint64_t)(n * W);
    if (__builtin_expect(here, 0)) {
      const int64_t slot = (target - at) / P * P + slot_of<T>((target - at) % P);
      OSM_EACH {
        if (slot / W != i) continue;
        S some[V::W];
        store(some, v[i]);
        some[slot % W] = 0;
        v[i] = V::load(some);
      }
    }
    if constexpr (rich) ride(v, z, at, here);
  }

  template <int n>
  OSM_INLINE void ride(const V (&e)[n], const V (&z)[n], int64_t at, bool here) const {
    const bool cut = at + n * W > wants.cols;
    if (wants.scores && !cut) {
      V t[n];
      OSM_EACH t[i] = sub(z[i], wants.m);
      if (wants.weights) OSM_EACH t[i] = mul(t[i], V::load(wants.weights + at + i * W));
      V sum = t[0];
      for (int i = 1; i < n; ++i) sum = add(sum, t[i]);
      wants.riders->scores = add(wants.riders->scores, widen_sum(sum));
    }
    if (wants.moment) {
      V sum = V::set(0);
      OSM_EACH sum = fma(e[i], sub(max(wants.low, z[i]), wants.m), sum);
      wants.riders->moment = add(wants.riders->moment, widen_sum(sum));
    }
    if (wants.rank && !cut && !here) {
      const V than = at < target ? wants.before : wants.behind;
      int count = 0;
      OSM_EACH count += __builtin_popcount(above(z[i], than));
      wants.riders->rank += count;
    }
    if (__builtin_expect(cut || (here && wants.rank), 0)) one_by_one(z, at, cut);
  }
  template <int n>
  OSM_INLINE void one_by_one(const V (&z)[n], int64_t at, bool cut) const {
    S all[n * V::W];
    OSM_EACH store(all + i * W, z[i]);
    const int64_t end = cut ? wants.cols - at : n * W;
    S pivot[V::W];
    store(pivot, wants.m);
    for (int64_t j = 0; j < end; ++j) {
      const int64_t slot = j / P * P + slot_of<T>(j % P);
      const S x = all[slot];
      if (cut && wants.scores) {
        const double d = (double)x - (double)pivot[0];
        wants.riders->last += wants.weights ? d * (double)wants.weights[at + slot] : d;
      }
      if (wants.rank && at + j != target)
        wants.riders->rank += x > wants.score || (x == wants.score && at + j < target);
    }
  }
};

// by * e - uniform * weight. In float `by` is in two parts, so that the product is rounded once.
template <class T, bool rich>
struct LossScale {
  using V = typename Of<T>::V;
  using S = typename Of<T>::S;
  V high, low, uniform;
  const S* weights;
  LossScale(double by, double each, const void* w) : weights((const S*)w) {
    high = V::set((S)by), low = V::set((S)(by - (double)(S)by)), uniform = V::set((S)each);
  }
  void shift(int64_t n) {
    if (rich && weights) weights += n;
  }
  template <int n>
  OSM_INLINE void operator()(V (&e)[n], [[maybe_unused]] int64_t at) const {
    constexpr bool parts = sizeof(T) == 4;
    if constexpr (rich) {
      V q[n];
      OSM_EACH q[i] = uniform;
      if (weights) OSM_EACH q[i] = mul(uniform, V::load(weights + at + i * V::W));
      if constexpr (parts) OSM_EACH q[i] = sub(q[i], mul(e[i], low));
      OSM_EACH e[i] = fms(e[i], high, q[i]);
    } else {
      if constexpr (parts) {
        V t[n];
        OSM_EACH t[i] = mul(e[i], low);
        OSM_EACH e[i] = fma(e[i], high, t[i]);
      } else {
        OSM_EACH e[i] = mul(e[i], high);
      }
    }
  }
};
template <class S>
S next_below(S x) {  // NaN for -inf: nothing is below it, and everything is above NaN as above() has it
  if (x == (S)-kInf) return (S)__builtin_nan("");
  return sizeof(S) == 4 ? (S)__builtin_nextafterf((float)x, -__builtin_inff())
                        : (S)__builtin_nextafter((double)x, -kInf);
}

// Two rows in flight: exponentials of row r, and the gradient of row r - 1 from those that were kept.
template <class T, bool rich>
struct LossPipeline {
  using V = typename Of<T>::V;
  using S = typename Of<T>::S;
  using Main = typename LossOf<T>::Main;
  using Far = ExpFar<V, LossOf<T>::degree>;
  using R = LossScale<T, rich>;
  static constexpr double kFarTarget = 16;
  static constexpr double kLeastFactor = sizeof(S) == 4 ? 0x1p-120 : 0x1p-990;
  const LossJob& job;
  bool lines;  // the gradient goes around the caches
  S* keep;
  char* space;
  int64_t waiting = -1;  // row whose gradient is to be written
  LossResult result{};

  explicit LossPipeline(const LossJob& j) : job(j) {
    lines = job.y && store_kind<T>(job.stream, job.y, job.y_stride, job.cols) != Store::plain;
    space = job.scratch, keep = (S*)(job.scratch + (lines_bytes<T>() + 63) / 64 * 64);
  }
  const T* x(int64_t r) const { return (const T*)(job.x + r * job.x_stride); }
  T* y(int64_t r) const { return (T*)(job.y + r * job.y_stride); }
  const S* weights(int64_t r) const { return job.weights ? (const S*)job.weights + r * job.weights_stride : nullptr; }
  R scale() const { return R(result.by * unscale<T>(), result.uniform, weights(waiting)); }

  void written() {
    if (job.target[waiting] >= 0) put(y(waiting)[job.target[waiting]], result.at_target);
    waiting = -1;
  }
  static void put(T& to, double value) {
    T some[2 * V::W];
    const V v = V::set((S)value);
    store2(some, v, v);
    to = some[0];
  }
  template <class E, Top kTop, bool kExp, Write kWrite>
  Swept swept(const T* from, const E& e) {
    if constexpr (kWrite == Write::none) {
      const Sweep<T, E, NoExp> w{nullptr, from, keep, e, keep, nullptr, kNoExp, nullptr};
      if (job.y) return sweep<T, E, NoExp, kTop, kExp, true, kWrite, Store::plain>(w, job.cols, space);
      return sweep<T, E, NoExp, kTop, kExp, false, kWrite, Store::plain>(w, job.cols, space);
    } else {
      const Sweep<T, E, R> w{nullptr, from, keep, e, keep, nullptr, scale(), y(waiting)};
      if constexpr (kStreams)
        if (lines) return sweep<T, E, R, kTop, kExp, kExp, kWrite, Store::lines>(w, job.cols, space);
      return sweep<T, E, R, kTop, kExp, kExp, kWrite, Store::plain>(w, job.cols, space);
    }
  }
  void flush() {
    if (waiting < 0) return;
    swept<NoExp, Top::none, false, Write::scaled>(nullptr, kNoExp);
    written();
  }

  // Of a gradient so small that it would be subnormal before it meets the exponentials, which carry a great factor.
  void write_one_by_one(int64_t r, double m) {
    const S* of_classes = weights(r);
    for (int64_t j = 0; j < job.cols; ++j) {
      const double w =
          of_classes ? (double)of_classes[j / pair_of<T>() * pair_of<T>() + slot_of<T>(j % pair_of<T>())] : 1;
      put(y(r)[j], result.by * __builtin_exp(as_double(x(r)[j]) - m) - result.uniform * w);
    }
    waiting = r;
    written();
  }

  template <class E>
  LossExp<T, E, rich> exp_of(int64_t r, S m, double reference, LossRiders* riders) const {
    LossExp<T, E, rich> exp{E(m), job.target[r], {}};
    if constexpr (rich) {
      const int64_t t = job.target[r];
      const S score = t >= 0 ? (S)as_double(x(r)[t]) : 0;
      exp.wants = {job.scores,
                   job.moment,
                   job.rank && t >= 0,
                   weights(r),
                   job.cols,
                   V::set((S)reference),
                   V::set(m + Log2e<V>::floor),
                   V::set(next_below(score)),
                   V::set(score),
                   score,
                   riders};
    }
    return exp;
  }

  // False where the row is not an ordinary one.
  bool settle(int64_t r, double m, double sum, const LossRiders& riders) {
    const int64_t t = job.target[r];
    LossStats stats{m, sum * unscale<T>(), __builtin_nan(""), (double)(S)m, 0, 0, riders.rank};
    if (t >= 0) {
      stats.target = as_double(x(r)[t]);
      if (!(stats.target < kInf)) return false;
    }
    // Terms at the floor stand for 0, those past the row's end too: n of them are nothing, not n times something. The
    // floor is counted from a pivot up to log(2)/2 above m.
    if (stats.s <= 1.5 * (double)(job.cols + pair_of<T>()) * __builtin_exp((double)Log2e<V>::floor)) stats.s = 0;
    if constexpr (rich) {
      stats.scores = hsum(riders.scores) + riders.last, stats.moment = hsum(riders.moment) * unscale<T>();
      if (!(stats.scores - stats.scores == 0 && stats.moment - stats.moment == 0)) return false;
    }
    job.settle(job.context, r, stats, &result);
    if (!job.y) return true;
    if (result.by != 0 && __builtin_fabs(result.by) * unscale<T>() < kLeastFactor)
      write_one_by_one(r, m);
    else
      waiting = r;
    return true;
  }

  bool by_any(int64_t r) {
    if constexpr (kAnyPivot<T>) {
      double p = first_pivot(x(r), job.cols);
      // Of a target far above the pivot the factor of the gradient, exp(pivot - lse), would have lost bits in float.
      if (job.target[r] >= 0) {
        const double score = as_double(x(r)[job.target[r]]);
        if (score > p + kFarTarget) p = score;
      }
      if (!may_do<T>(p)) return false;
      LossRiders riders;
      // What exponentials are relative to; riders take the nearest number of their format.
      const double m = Main::reference(p);
      const auto exp = exp_of<Main>(r, (S)p, m, &riders);
      Swept found;
      if (waiting < 0) {
        found = swept<LossExp<T, Main, rich>, Top::peak, true, Write::none>(x(r), exp);
      } else {
        found = swept<LossExp<T, Main, rich>, Top::peak, true, Write::scaled>(x(r), exp);
        written();
      }
      // Of a greater sum the gradient's factor, 1/s times a small gradient of the loss, would lose bits in float.
      return found.max <= p + kAbove && found.sum < 0x1p88 && settle(r, m, found.sum, riders);
    }
    return false;
  }
  bool by_maximum(int64_t r) {
    flush();
    const double m = row_max(x(r), job.cols);
    if (!(m < kInf && m > -kInf)) return false;
    LossRiders riders;
    const Swept found =
        swept<LossExp<T, Far, rich>, Top::none, true, Write::none>(x(r), exp_of<Far>(r, (S)m, m, &riders));
    return found.sum == found.sum && settle(r, m, found.sum, riders);
  }
  void run() {
    for (int64_t r = 0; r < job.rows; ++r) {
      if (job.target[r] == kIgnored && !job.ignored_too) {
        if (job.y) __builtin_memset((void*)y(r), 0, (size_t)job.cols * sizeof(T));
      } else if (!by_any(r) && !by_maximum(r)) {
        job.odd(job.context, r);
      }
    }
    flush();
    if (lines) fence();
  }
};

template <class T>
void loss_rows(const LossJob& job) {
  if (job.scores || job.moment || job.rank || job.uniform)
    LossPipeline<T, true>(job).run();
  else
    LossPipeline<T, false>(job).run();
}

template <class T>
void loss_scores(const char* given, void* to, void* slopes, int64_t n, double softcap, double inverse) {
  using V = typename Of<T>::V;
  using S = typename Of<T>::S;
  constexpr int degree = LossOf<T>::degree == 5 ? 6 : LossOf<T>::degree;
  const T* x = (const T*)given;
  S *z = (S*)to, *by = (S*)slopes;
  constexpr int64_t P = pair_of<T>();
  for (int64_t at = 0; at < n; at += P) {
    const int64_t here = n - at < P ? n - at : P;
    V v[2], d[2];
    if (here == P)
      load2(x + at, v[0], v[1]);
    else
      load_some(x + at, here, v[0], v[1]);
    for (int k = 0; k < 2; ++k) {
      d[k] = V::set((S)inverse);
      if (softcap > 0) {
        v[k] = mul(V::set((S)softcap), tanh_of<V, degree>(div(v[k], V::set((S)softcap)), by ? &d[k] : nullptr));
        d[k] = mul(d[k], V::set((S)inverse));
      }
      v[k] = mul(v[k], V::set((S)inverse));
    }
    S some[2 * V::W], slope[2 * V::W];
    store(some, v[0]), store(some + V::W, v[1]), store(slope, d[0]), store(slope + V::W, d[1]);
    for (int64_t j = 0; j < here; ++j) {
      z[at + j] = some[slot_of<T>(j)];
      if (by) by[at + j] = slope[slot_of<T>(j)];
    }
  }
}

template <class T>
void loss_narrow(const void* gradient, const void* slopes, char* to, int64_t n) {
  using V = typename Of<T>::V;
  using S = typename Of<T>::S;
  const S *g = (const S*)gradient, *by = (const S*)slopes;
  T* y = (T*)to;
  constexpr int64_t P = pair_of<T>();
  for (int64_t at = 0; at < n; at += P) {
    const int64_t here = n - at < P ? n - at : P;
    S some[2 * V::W] = {};
    for (int64_t j = 0; j < here; ++j) some[slot_of<T>(j)] = g[at + j] * by[at + j];
    if (here == P)
      store2(y + at, V::load(some), V::load(some + V::W));
    else
      store_some(y + at, here, V::load(some), V::load(some + V::W));
  }
}

template <class T>
int64_t loss_greatest(const char* given, int64_t n) {
  const T* x = (const T*)given;
  const double m = row_max(x, n);
  for (int64_t i = 0; i < n; ++i)
    if (as_double(x[i]) == m) return i;
  return 0;
}

template <class T>
constexpr LossKernels loss_kernels() {
  return {loss_rows<T>, [](int64_t i) { return i / pair_of<T>() * pair_of<T>() + slot_of<T>(i % pair_of<T>()); },
          loss_scores<T>, loss_narrow<T>, loss_greatest<T>};
}

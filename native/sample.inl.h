// Drawing from a row: an exponential race. Element i arrives after -log(u_i)/exp(z_i), the first wins. -log(u) >= 1 - u
// = v, so only an element whose v is below exp(z) * (time of the best so far) can: the leading 16 bits of v tell, and
// the exponential is there for the log-sum-exp anyway. The few that may win get their exact keys in double, by code
// that is the same everywhere. Included inside the namespace of an instruction set, after elements.inl.h.
//
// Each instruction set brings load_ordered(p, F32&), which loads W elements in their order, and
//   spread(words, v)   the leading bits of a block's tokens, as floats 2^23 + v
//   any_less(a, b)     whether one of n positive floats is less than its fellow, by their bits

constexpr double kLog2e = 1.4426950408889634;
constexpr double kWaits = 64;  // -log(u) is less: u has 80 bits
// The exponentials of the race may be off by u * 111 and the polynomial's error; the threshold is raised by more.
constexpr double kRaceMargin = 1 + 0x1p-10;

// What a candidate meets: the exact key.
template <class T>
struct Race {
  const SampleNoise& noise;
  double temperature, reference;  // of the exponentials: exp(z - reference)
  SampleBest best = kNoBest;
  double limit;  // in units of 2^-16, over the scale of the exponentials

  Race(const SampleJob& job, double pivot)
      : noise(job.noise), temperature(job.temperature), reference(pivot / job.temperature) {
    // The element at the pivot arrives before this, and has an exponential of 1.
    limit = kWaits * 0x1p16 * unscale<T>() * kRaceMargin;
  }
  OSM_INLINE void meet(double x, int64_t token, uint32_t leading) {
    const double z = x / temperature;
    if (!(z > -kInf)) return;
    const SampleBest its = sample_key(z, sample_gumbel(noise, token, leading), token);
    if (sample_beats(its, best)) {  // tokens come in their order
      best = its;
      const double time = __builtin_exp((reference - its.key) - its.rest) * 0x1p16 * unscale<T>() * kRaceMargin;
      if (time < limit) limit = time;
    }
  }
};

OSM_INLINE double widened(float x) { return (double)x; }
OSM_INLINE double widened(double x) { return x; }

// The elements of a block that may win, one by one.
template <class T, class S>
OSM_INLINE void meet_block(const S* x, const S* e, const uint64_t* words, int64_t token, Race<T>& race) {
  for (int t = 0; t < kSampleBlock; ++t) {
    const uint32_t leading = sample_leading(words, t);
    if ((double)leading <= (double)e[t] * race.limit) race.meet(widened(x[t]), token + t, leading);
  }
}

// exp((x - pivot)/temperature), times 2^64: by the difference, whose rounding a term itself weights.
// kLow: with the part of log2(e)/temperature that a float does not hold.
template <bool kLow>
struct SampleExp {
  using C = Log2e<F32>;
  F32 pivot, floor, high, low;
  OSM_INLINE SampleExp(double p, double temperature) {
    const double scale = kLog2e / temperature;
    pivot = F32::set((float)p), floor = F32::set((float)((double)C::floor * temperature));
    high = F32::set((float)scale), low = F32::set((float)(scale - (double)(float)scale));
  }
  template <int n>
  OSM_INLINE void operator()(F32 (&x)[n], F32& top) const {
    F32 z[n], f[n];
    OSM_EACH x[i] = sub(x[i], pivot);
    OSM_EACH top = peak(top, x[i]);
    OSM_EACH x[i] = max(floor, x[i]);
    OSM_EACH z[i] = fma(x[i], high, F32::set(C::magic));
    OSM_EACH f[i] = fms(x[i], high, sub(z[i], F32::set(C::magic)));
    if constexpr (kLow) OSM_EACH f[i] = fma(x[i], low, f[i]);
    polynomial<5>(f, x);
    OSM_EACH x[i] = mul(x[i], power(z[i]));
  }
};

constexpr int kSampleRegs = kSampleBlock / F32::W;
constexpr int kSampleGroup = kSampleRegs < 4 ? kSampleRegs : 4;  // registers side by side

template <class T, class E>
OSM_INLINE void block_exps(const T* x, const E& exp, F32 (&e)[kSampleRegs], F32& top) {
  constexpr int n = kSampleRegs;
  OSM_EACH load_ordered(x + i * F32::W, e[i]);
  _Pragma("GCC unroll 16") for (int g = 0; g < n; g += kSampleGroup) {
    F32(&some)[kSampleGroup] = *(F32(*)[kSampleGroup])(e + g);
    exp(some, top);
  }
}

template <class T, class E>
__attribute__((noinline)) void meet_some(const T* x, const E& exp, const uint64_t* words, int64_t token,
                                         Race<T>& race) {
  constexpr int n = kSampleRegs;
  float plain[kSampleBlock], exps[kSampleBlock];
  F32 e[n], none = F32::set(0);
  OSM_EACH load_ordered(x + i * F32::W, e[i]);
  OSM_EACH store(plain + i * F32::W, e[i]);
  block_exps(x, exp, e, none);
  OSM_EACH store(exps + i * F32::W, e[i]);
  meet_block<T, float>(plain, exps, words, token, race);
}

OSM_INLINE void block_words(const SampleNoise& noise, int64_t block, uint64_t (&words)[kSampleWords]) {
  uint64_t at = noise.start + (uint64_t)block * (kSampleWords * kSampleStep);
  _Pragma("GCC unroll 8") for (int i = 0; i < kSampleWords; ++i) {
    words[i] = sample_fold(at, at ^ noise.twist);
    at += kSampleStep;
  }
}

// Sums, and the race, of elements [0, n) whose first is token `first`. Places of a block that lie outside count as
// -inf.
template <class T, bool kDraws, class E>
double sample_sweep(const T* x, int64_t n, int64_t first, const E& exp, Race<T>& race, double* highest) {
  Total<F32> total;
  F32 top = F32::set(-__builtin_inff()), sum = F32::set(0), limit = F32::set((float)race.limit);
  const F32 one = F32::set(0x1p23f + 1);
  const SampleNoise noise = race.noise;
  // Words are made a block ahead: by then they have left the store buffer and load as whole registers.
  alignas(64) uint64_t words[2][kSampleWords];
  const int64_t end = first + n, start = first & ~(int64_t)(kSampleBlock - 1);
  if constexpr (kDraws) block_words(noise, start / kSampleBlock, words[start / kSampleBlock & 1]);
  for (int64_t token = start; token < end; token += kSampleBlock) {
    const T* at = x + (token - first);
    const int64_t block = token / kSampleBlock;
    T padded[kSampleBlock];
    if (__builtin_expect(token < first || token + kSampleBlock > end, 0)) {
      for (int t = 0; t < kSampleBlock; ++t) {
        if (token + t < first || token + t >= end)
          put_neg_inf(padded[t]);
        else
          padded[t] = at[t];
      }
      at = padded;
    } else {
      for (int64_t b = 0; b < kSampleBlock * (int64_t)sizeof(T); b += 64) prefetch((const char*)at + kAhead + b);
    }
    constexpr int regs = kSampleRegs;
    F32 e[regs];
    if constexpr (kDraws) block_words(noise, block + 1, words[(block + 1) & 1]);
    block_exps(at, exp, e, top);
    F32 s = add(e[0], e[1]);
    for (int i = 2; i < regs; i += 2) s = add(s, add(e[i], e[i + 1]));
    sum = add(sum, s);
    if constexpr (kDraws) {
      F32 v[regs];
      spread(words[block & 1], v);
      _Pragma("GCC unroll 16") for (int i = 0; i < regs; ++i) e[i] = fma(e[i], limit, one);
      if (__builtin_expect(any_less(v, e), 0)) {
        meet_some(at, exp, words[block & 1], token, race);
        limit = F32::set((float)race.limit);
      }
    }
    if ((token & (kSampleFold - 1)) == kSampleFold - kSampleBlock) {
      total.fold(sum);
      sum = F32::set(0);
    }
  }
  total.fold(sum);
  *highest = (double)hmax(max(F32::set(0), top));
  return total.value();
}

// The same for doubles, whose exponentials have a longer polynomial and whose sums carry what is rounded away.
template <bool kDraws>
double sample_sweep(const double* x, int64_t n, int64_t first, double pivot, double temperature, Race<double>& race,
                    double* highest) {
  constexpr int W = F64::W;
  const ExpFar<F64, 11> exp(0.0);
  const F64 p = F64::set(pivot), inverse = F64::set(1 / temperature);
  Total<F64> total;
  const int64_t end = first + n;
  F64 top = F64::set(-kInf);
  for (int64_t token = first & ~(int64_t)(kSampleBlock - 1); token < end; token += kSampleBlock) {
    double padded[kSampleBlock], e[kSampleBlock];
    const double* at = x + (token - first);
    if (token < first || token + kSampleBlock > end) {
      for (int t = 0; t < kSampleBlock; ++t) padded[t] = token + t < first || token + t >= end ? -kInf : at[t];
      at = padded;
    }
    F64 sum = F64::set(0);
    for (int i = 0; i < kSampleBlock; i += 2 * W) {
      F64 v[2];
      for (int k = 0; k < 2; ++k) v[k] = mul(sub(F64::load(at + i + k * W), p), inverse);
      top = max(max(v[0], v[1]), top);
      exp(v);
      store(e + i, v[0]), store(e + i + W, v[1]);
      sum = add(sum, add(v[0], v[1]));
    }
    total.fold(sum);
    if constexpr (kDraws) {
      uint64_t words[kSampleWords];
      for (int i = 0; i < kSampleWords; ++i)
        words[i] = sample_word(race.noise, (uint64_t)(token / kSampleBlock) * kSampleWords + (uint64_t)i);
      int some = 0;
      for (int t = 0; t < kSampleBlock; ++t) some |= (double)sample_leading(words, t) <= e[t] * race.limit;
      if (some) meet_block<double, double>(at, e, words, token, race);
    }
  }
  *highest = hmax(max(F64::set(0), top)) * temperature;
  return total.value();
}

template <class T, bool kDraws>
double sample_once(const SampleJob& job, double pivot, Race<T>& race, double* highest) {
  const T* x = (const T*)job.x;
  if constexpr (sizeof(T) == 8) {
    return sample_sweep<kDraws>(x, job.n, job.first, pivot, job.temperature, race, highest);
  } else {
    const double scale = kLog2e / job.temperature, low = scale - (double)(float)scale;
    if (low < scale * 0x1p-26 && low > -scale * 0x1p-26)
      return sample_sweep<T, kDraws>(x, job.n, job.first, SampleExp<false>(pivot, job.temperature), race, highest);
    return sample_sweep<T, kDraws>(x, job.n, job.first, SampleExp<true>(pivot, job.temperature), race, highest);
  }
}

template <class T>
double sample_maximum(const char* p, int64_t n) {
  using V = typename Of<T>::V;
  using S = typename Of<T>::S;
  const T* x = (const T*)p;
  const int64_t P = pair_of<T>();
  V top[4] = {V::set((S)-kInf), V::set((S)-kInf), V::set((S)-kInf), V::set((S)-kInf)};
  int64_t i = 0;
  for (; i + 2 * P <= n; i += 2 * P) {
    V v[4];
    load2(x + i, v[0], v[1]), load2(x + i + P, v[2], v[3]);
    for (int k = 0; k < 4; ++k) top[k] = max(top[k], v[k]);
  }
  for (; i < n; i += P) {
    V a, b;
    if (i + P <= n)
      load2(x + i, a, b);
    else
      load_some(x + i, n - i, a, b);
    top[0] = max(top[0], a), top[1] = max(top[1], b);
  }
  return (double)hmax(max(max(top[0], top[1]), max(top[2], top[3])));
}

// How cold a row may be for its first elements to be good enough a pivot: below, the true maximum costs less than a
// second sweep now and then.
constexpr double kWarm = 0.5;

template <class T>
void sample_piece(const SampleJob& job, SamplePiece* piece) {
  const auto finite = [](double m) { return m < kInf && m > -kInf; };
  double pivot = -kInf;
  if (!job.true_maximum && job.temperature >= kWarm)
    pivot = sample_maximum<T>(job.x, job.n < 4 * kSampleBlock ? job.n : 4 * kSampleBlock);
  bool by_maximum = !finite(pivot);
  for (;; by_maximum = true) {
    if (by_maximum) pivot = sample_maximum<T>(job.x, job.n);
    const double base = finite(pivot) ? pivot : 0.0;
    Race<T> race(job, base);
    double highest;
    const double sum =
        job.draws ? sample_once<T, true>(job, base, race, &highest) : sample_once<T, false>(job, base, race, &highest);
    const bool fits = highest <= kAbove * job.temperature && sum * unscale<T>() < 0x1p36;
    if (!by_maximum && !fits) continue;
    *piece = {race.best, pivot, {pivot / job.temperature, sum * unscale<T>()}};
    if (finite(piece->state.m) && sum == sum) return;
    piece->best = kNoBest;
    if (sum == sum && pivot == -kInf)
      piece->state = {-kInf, 0.0};
    else
      piece->state = {sum != sum && !(pivot == kInf) ? __builtin_nan("") : kInf, __builtin_nan("")};
    return;
  }
}

template <class T>
double sample_sum(const SampleJob& job, double pivot, int64_t without) {
  const T* x = (const T*)job.x;
  T copy[kSampleFold];
  double total = 0;
  SampleJob group = job;
  for (int64_t i = 0; i < job.n;) {
    const int64_t room = kSampleFold - ((job.first + i) & (kSampleFold - 1)), n = job.n - i < room ? job.n - i : room;
    for (int64_t k = 0; k < n; ++k) copy[k] = x[i + k];
    if (without >= i && without < i + n) put_neg_inf(copy[without - i]);
    group.x = (const char*)copy, group.n = n, group.first = job.first + i;
    Race<T> none(group, pivot);
    double highest;
    total += sample_once<T, false>(group, pivot, none, &highest) * unscale<T>();
    i += n;
  }
  return total;
}

template <class T>
int64_t sample_find(const char* p, int64_t n, double value) {
  using V = typename Of<T>::V;
  using S = typename Of<T>::S;
  const T* x = (const T*)p;
  const V wanted = V::set((S)value);
  const int64_t P = pair_of<T>();
  for (int64_t i = 0; i < n; i += P) {
    V v[2];
    if (i + P <= n)
      load2(x + i, v[0], v[1]);
    else
      load_some(x + i, n - i, v[0], v[1]);
    if (!(count_equal(v[0], wanted) + count_equal(v[1], wanted))) continue;
    S plain[2 * V::W];
    store(plain, v[0]), store(plain + V::W, v[1]);
    int64_t least = n;
    for (int64_t k = 0; k < P; ++k)
      if (plain[k] == (S)value && i + place_of<T>(k) < least) least = i + place_of<T>(k);
    if (least < n) return least;  // else it was what stands in for places past the end
  }
  return -1;
}

template <class T>
int64_t sample_above(const char* p, int64_t n, double cut, double temperature, double* values, int64_t* places) {
  using V = typename Of<T>::V;
  using S = typename Of<T>::S;
  const T* x = (const T*)p;
  S rounded = (S)cut;
  const V under = V::set(rounded);
  const int64_t P = pair_of<T>();
  int64_t count = 0;
  for (int64_t i = 0; i < n; i += P) {
    V v[2];
    if (i + P <= n)
      load2(x + i, v[0], v[1]);
    else
      load_some(x + i, n - i, v[0], v[1]);
    if (!(above(v[0], under) | above(v[1], under))) continue;
    S plain[2 * V::W], ordered[2 * V::W];
    store(plain, v[0]), store(plain + V::W, v[1]);
    for (int64_t k = 0; k < P; ++k) ordered[place_of<T>(k)] = plain[k];
    const int64_t here = n - i < P ? n - i : P;
    for (int64_t k = 0; k < here; ++k) {
      values[count] = (double)ordered[k], places[count] = i + k;
      count += !(ordered[k] <= rounded);
    }
  }
  for (int64_t i = 0; i < count; ++i) values[i] /= temperature;
  return count;
}

template <class T>
constexpr SampleKernels sample_kernels() {
  return {sample_piece<T>, sample_sum<T>, sample_maximum<T>, sample_find<T>, sample_above<T>};
}

// The exact accumulator of attention: partials of super-tiles added in whole numbers, so that no order shows. The law
// is online_softmax/attention_sums.py, and this gives its bits. Included inside the namespace of an instruction set,
// after attention_scores.inl.h.

constexpr double kLargeLevel = 0x1p30;
constexpr double kWholeMagic = 0x1.8p52;  // what is added to it is rounded to a whole number
constexpr int kSumWidth = 32;

OSM_INLINE int64_t bits_of(double x) {
  int64_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}
OSM_INLINE double double_of(int64_t bits) {
  double x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

// exp(x) near p * 2^n, as online_softmax/exact.py has it for float64; |x| up to kLargeLevel.
OSM_INLINE double exact_term(double x, int64_t& n) {
  constexpr double log2e = 0x1.71547652b82fep+0, log2e_low = 0x1.777d0ffda0d24p-56;
  constexpr double coefficients[] = {0x1.62e42fefa39efp-1,  0x1.ebfbdff82c58fp-3,  0x1.c6b08d704a0ccp-5,
                                     0x1.3b2ab6fba4e7ap-7,  0x1.5d87fe78a2817p-10, 0x1.430912f86ae8bp-13,
                                     0x1.ffcbfc767e0d0p-17, 0x1.62c02246389cbp-20, 0x1.b524d66e8dfc9p-24,
                                     0x1.e4ceffef1e38ap-28, 0x1.ea0fee33cacf4p-32, 0x1.c4beee69db273p-36};
  const F64 y = F64::set(x), magic = F64::set(kWholeMagic), one = F64::set(log2e);
  const F64 whole = sub(fma(y, one, magic), magic);
  const F64 f = fma(y, F64::set(log2e_low), fms(y, one, whole));
  F64 p = F64::set(coefficients[11]);
  for (int i = 10; i >= 0; --i) p = fma(p, f, F64::set(coefficients[i]));
  p = fma(p, f, F64::set(1));
  double lanes[F64::W], numbers[F64::W];
  store(lanes, p), store(numbers, whole);
  n = (int64_t)numbers[0];
  return lanes[0];
}

template <class S>
struct SumsOfRow {
  static constexpr int slices = kAttentionSlices<S>;
  S& level;
  int32_t* bins;  // of the weight, then of the features
  int64_t* a;     // slice by slice
  uint8_t* odd;
  int64_t n;  // 1 + features

  SumsOfRow(const AttentionSums& to, int64_t dv)
      : level(*(S*)to.level), bins(to.bins), a(to.a), odd(to.odd), n(1 + dv) {}

  void clear() {
    for (int64_t i = 0; i < n; ++i) bins[i] = kNoBin;
    __builtin_memset(a, 0, (size_t)(n * slices) * sizeof *a);
  }
  // Whether numbers of this level count. One above what is here makes that nothing.
  bool rise(double own) {
    if (own == -kInf || level != level || (level == (S)kInf && own == own)) return false;
    if (own != own || own == kInf) {
      clear(), level = own == own ? (S)kInf : (S)__builtin_nan("");
      __builtin_memset(odd, 0, (size_t)(n - 1));
      return false;
    }
    if (own > (double)level) clear(), level = (S)own;
    return true;
  }
  // Room for numbers of this bin.
  void lift(int64_t i, int64_t bin) {
    if (bins[i] != kNoBin && bin > bins[i]) {
      const int64_t by = bin - bins[i];
      for (int k = slices; k-- > 0;) a[k * n + i] = k >= by ? a[(k - by) * n + i] : 0;
    }
    if (bin > bins[i]) bins[i] = (int32_t)bin;
  }
  // u * 2^e, whatever it is.
  void add_one(int64_t i, double u, int64_t e) {
    if (u * 0 != 0) {
      if (i > 0) odd[i - 1] |= (uint8_t)(u == kInf ? 1 : u == -kInf ? 2 : 4);
      return;
    }
    if (u == 0) return;
    const int64_t biased = bits_of(u) >> 52 & 0x7ff;
    if (biased == 0) return add_one(i, u * 0x1p64, e - 64);
    e += biased - 1022;
    const int64_t bin = e >> 5;
    lift(i, bin);
    int64_t shift = e - kSumWidth * (int64_t)bins[i];
    if (shift < -kSumWidth * slices - 2) return;  // below the grid
    double x = double_of((bits_of(u) & ~((int64_t)0x7ff << 52)) | (shift + 1022) << 52);
    for (int k = 0; k < slices; ++k) {
      const double v = x + kWholeMagic;
      a[k * n + i] += bits_of(v) - bits_of(kWholeMagic);
      x = (x - (v - kWholeMagic)) * 0x1p32;
    }
  }
  // u * 2^e for all of them, each u of which becomes 0. In loops that are made into vectors.
  void add_all(double* u, int64_t e) {
    double x[1 + kMostFeatures];
    int64_t by[1 + kMostFeatures], rest = 0;
    const int64_t odd_bits = bits_of(__builtin_nan(""));
    if (bins[0] == kNoBin)  // the row's first
      for (int64_t i = 0; i < n; ++i) {
        const auto biased = (int32_t)(bits_of(u[i]) >> 52 & 0x7ff);
        bins[i] = biased > 0 && biased < 0x7ff ? ((int32_t)e + biased - 1022) >> 5 : kNoBin;
      }
    for (int64_t i = 0; i < n; ++i) {
      const int64_t shift = e - ((int64_t)bins[i] << 5);
      const int64_t power = (int64_t)((uint64_t)(shift + 1023) << 52);
      by[i] = shift > -900 ? (shift < 900 ? power : odd_bits) : odd_bits;
    }
    for (int64_t i = 0; i < n; ++i) {
      const double y = u[i] * double_of(by[i]), size = y < 0 ? -y : y;
      x[i] = size < 0x1p31 ? y : 0;
      u[i] = size < 0x1p31 ? 0 : u[i];
    }
    for (int64_t i = 0; i < n; ++i) rest |= bits_of(u[i]) << 1;
    for (int k = 0; k < slices; ++k) {
      int64_t* sums = a + k * n;
      for (int64_t i = 0; i < n; ++i) {
        const double v = x[i] + kWholeMagic;
        sums[i] += bits_of(v) - bits_of(kWholeMagic);
        x[i] = (x[i] - (v - kWholeMagic)) * 0x1p32;
      }
    }
    if (rest == 0) return;
    for (int64_t i = 0; i < n; ++i)
      if (u[i] != 0) add_one(i, u[i], e);
  }
};

// A row's partial: o = sum of exp(score - pivot) * v, by `by`; weight = sum of exp(score - pivot).
template <class S>
void attention_sums_add(const AttentionSums& to, double pivot, double weight, const void* o, double by, int64_t dv) {
  SumsOfRow<S> sums(to, dv);
  const bool plain = pivot <= kLargeLevel && pivot >= -kLargeLevel;
  const double own = weight != weight || pivot != pivot ? __builtin_nan("") : plain ? 0.0 : (double)(S)pivot;
  if (!sums.rise(own)) return;
  int64_t n = 0;
  const double p = plain ? exact_term(pivot, n) : 1;
  double u[1 + kMostFeatures];
  u[0] = weight * p;
  for (int64_t i = 0; i < dv; ++i) u[1 + i] = (double)(S)(((const S*)o)[i] * (S)by) * p;
  if (own == (double)sums.level) return sums.add_all(u, n);
  for (int64_t i = 1; i <= dv; ++i)
    if (u[i] * 0 != 0) sums.add_one(i, u[i], 0);
}

// to becomes the merge of the two.
template <class S>
void attention_sums_merge(const AttentionSums& to, const AttentionSums& from, int64_t dv) {
  SumsOfRow<S> sums(to, dv), other(from, dv);
  if (!sums.rise((double)other.level)) return;
  for (int64_t i = 0; i < dv; ++i) sums.odd[i] |= other.odd[i];
  if (sums.level != other.level) return;
  const int64_t n = sums.n;
  for (int64_t i = 0; i < n; ++i) {
    if (other.bins[i] == kNoBin) continue;
    sums.lift(i, other.bins[i]);
    const int64_t down = (int64_t)sums.bins[i] - other.bins[i];
    for (int64_t k = down; k < sums.slices; ++k) sums.a[k * n + i] += other.a[(k - down) * n + i];
  }
}

// What the sums of a row come to, each number rounded once.
template <class S>
void attention_sums_read(const AttentionSums& from, int64_t dv, void* to, double* lse) {
  const SumsOfRow<S> sums(from, dv);
  S* o = (S*)to;
  if (!(sums.level * 0 == 0)) {
    *lse = (double)sums.level;
    for (int64_t i = 0; i < dv; ++i) o[i] = sums.level == (S)-kInf ? 0 : (S)__builtin_nan("");
    return;
  }
  // The lower slices are first brought below a unit of those above.
  const auto total = [&](int64_t i) {
    int64_t digits[SumsOfRow<S>::slices];
    for (int k = 0; k < sums.slices; ++k) digits[k] = sums.a[k * sums.n + i];
    for (int k = sums.slices - 1; k > 0; --k) digits[k - 1] += digits[k] >> kSumWidth, digits[k] &= 0xffffffff;
    double all = (double)digits[sums.slices - 1];
    for (int k = sums.slices - 2; k >= 0; --k) all = all * 0x1p-32 + (double)digits[k];
    return all;
  };
  const double weight = total(0);
  for (int64_t i = 0; i < dv; ++i) {
    int64_t by = sums.bins[1 + i] == kNoBin ? 0 : ((int64_t)sums.bins[1 + i] - sums.bins[0]) * kSumWidth;
    by = by < -4096 ? -4096 : by > 4096 ? 4096 : by;
    const double ratio = total(1 + i) / weight;
    const bool near = by > -1000 && by < 1000;
    o[i] = (S)(near ? ratio * double_of((by + 1023) << 52) : __builtin_ldexp(ratio, (int)by));
    if (const int odd = sums.odd[i]) o[i] = (S)(odd == 1 ? kInf : odd == 2 ? -kInf : __builtin_nan(""));
  }
  const int64_t e = (bits_of(weight) >> 52) - 1022;
  double f = double_of((bits_of(weight) & ~((int64_t)0x7ff << 52)) | (int64_t)1022 << 52);
  const bool small = f < 0.75;
  const double exponent = (double)(e - small + kSumWidth * (int64_t)sums.bins[0]);
  *lse = (double)sums.level + (exponent * 0x1.62e42fefa39efp-1 + same_log1p((small ? f * 2 : f) - 1));
}

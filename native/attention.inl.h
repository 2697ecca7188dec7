// Attention of a tile of query rows over a chunk of keys: scores, softmax, and the sum of values, in one pass.
// Included inside the namespace of an instruction set.
//
// K and V of a chunk are packed once into panels of kPanel columns and serve many tiles of queries. Both products are
// then the same small matrix product, C (rows x panel) += A (rows x n) * B (n x panel): of Q with K transposed, and of
// P with V. A row keeps its pivot, its sum and its row of O; the pivot moves, and O is rescaled, where a score rises
// more than kRise above it.

// How products are made: in V's own format, or in pairs of bfloat16.
template <class V_>
struct Plain {
  using V = V_;
  using S = typename V::Scalar;
  using Packed = S;  // of Q, K, V and P
  static constexpr int step = 1;
  using A = S;
  static OSM_INLINE V broadcast(const A* a) { return V::set(*a); }
  static OSM_INLINE V load(const S* b) { return V::load(b); }
  static OSM_INLINE V product(V a, V b, V c) { return fma(a, b, c); }
  static OSM_INLINE void put(S* p, int64_t at, S value) { p[at] = value; }
};

template <class M>
constexpr int kPanel = kTileVectors * M::V::W;

// C = A * B or C += A * B: rows x (vectors * W), A's rows `lda` apart, B packed, n steps.
template <class M, int rows, int vectors, bool more>
OSM_INLINE void tile_product(const typename M::A* a, int64_t lda, const typename M::Packed* b, int64_t n,
                             typename M::S* c, int64_t ldc) {
  using V = typename M::V;
  V sum[rows][vectors];
  _Pragma("GCC unroll 16") for (int r = 0; r < rows; ++r) _Pragma("GCC unroll 8") for (int v = 0; v < vectors; ++v)
      sum[r][v] = more ? V::load(c + r * ldc + v * V::W) : V::set(0);
  constexpr int64_t stride = (int64_t)kTileVectors * V::W * M::step;
  for (int64_t i = 0; i < n; ++i) {
    auto b0 = M::load(b + i * stride);
    decltype(b0) bv[vectors];
    _Pragma("GCC unroll 8") for (int v = 0; v < vectors; ++v) bv[v] = M::load(b + i * stride + v * V::W * M::step);
    _Pragma("GCC unroll 16") for (int r = 0; r < rows; ++r) {
      const auto av = M::broadcast(a + r * lda + i);
      _Pragma("GCC unroll 8") for (int v = 0; v < vectors; ++v) sum[r][v] = M::product(av, bv[v], sum[r][v]);
    }
  }
  _Pragma("GCC unroll 16") for (int r = 0; r < rows; ++r) _Pragma("GCC unroll 8") for (int v = 0; v < vectors; ++v)
      store(c + r * ldc + v * V::W, sum[r][v]);
}

template <class M, int vectors, bool more>
void tile_rows(int rows, const typename M::A* a, int64_t lda, const typename M::Packed* b, int64_t n, typename M::S* c,
               int64_t ldc) {
  for (; rows >= kTileRows; rows -= kTileRows, a += kTileRows * lda, c += kTileRows * ldc)
    tile_product<M, kTileRows, vectors, more>(a, lda, b, n, c, ldc);
  for (; rows >= 2; rows -= 2, a += 2 * lda, c += 2 * ldc) tile_product<M, 2, vectors, more>(a, lda, b, n, c, ldc);
  if (rows) tile_product<M, 1, vectors, more>(a, lda, b, n, c, ldc);
}

// One panel against all rows of a tile; a last panel of fewer columns takes as many vectors as it has.
template <class M, bool more, int vectors = kTileVectors>
void panel_product(int wanted, int rows, const typename M::A* a, int64_t lda, const typename M::Packed* b, int64_t n,
                   typename M::S* c, int64_t ldc) {
  if constexpr (vectors > 1)
    if (wanted < vectors) return panel_product<M, more, vectors - 1>(wanted, rows, a, lda, b, n, c, ldc);
  tile_rows<M, vectors, more>(rows, a, lda, b, n, c, ldc);
}

// ---- packing

OSM_INLINE void widen_row(const float* p, int64_t n, float* to) { __builtin_memcpy(to, p, (size_t)n * 4); }
OSM_INLINE void widen_row(const double* p, int64_t n, double* to) { __builtin_memcpy(to, p, (size_t)n * 8); }
OSM_INLINE void widen_row(const bf16* p, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = (uint32_t)p[i].bits << 16;
    __builtin_memcpy(to + i, &bits, 4);
  }
}
OSM_INLINE void widen_row(const f16* p, int64_t n, float* to) {
  F32 a, b;
  int64_t i = 0;
  for (; i + 2 * F32::W <= n; i += 2 * F32::W) load2(p + i, a, b), store2(to + i, a, b);
  if (i == n) return;
  float some[2 * F32::W];
  load_some(p + i, n - i, a, b), store2(some, a, b);
  for (int64_t j = i; j < n; ++j) to[j] = some[j - i];
}
// A row of n elements `step` bytes apart, in the format that products are made in. `room` is for n elements of T.
template <class T, class S>
OSM_INLINE void gather_row(const char* p, int64_t step, int64_t n, S* to, T* room) {
  if (step == (int64_t)sizeof(T)) return widen_row((const T*)p, n, to);
  for (int64_t i = 0; i < n; ++i) __builtin_memcpy(room + i, p + i * step, sizeof(T));
  widen_row(room, n, to);
}

template <class T>
struct Heads {  // how the products of a format are made
  using M = Plain<typename Of<T>::V>;
  // Degree of the exponential's polynomial: what the result's format can resolve.
  static constexpr int degree = sizeof(T) == 2 ? 4 : Of<T>::kDegree;
};

template <class T>
void pack_q(const char* p, int64_t step, int64_t d, void* to) {
  T room[kMostFeatures];
  gather_row<T>(p, step, d, (typename Heads<T>::M::S*)to, room);
}

// Keys as columns: panels of kPanel keys, each d x kPanel, the last filled up with zeros.
template <class T>
void pack_k(const char* p, int64_t row, int64_t step, int64_t n, int64_t d, void* to) {
  using M = typename Heads<T>::M;
  constexpr int64_t panel = kPanel<M>;
  typename M::S line[kMostFeatures];
  T room[kMostFeatures];
  typename M::S* out = (typename M::S*)to;
  for (int64_t j = 0; j < (n + panel - 1) / panel * panel; ++j) {
    typename M::S* column = out + j / panel * panel * d + j % panel;
    if (j < n)
      gather_row<T>(p + j * row, step, d, line, room);
    else
      __builtin_memset(line, 0, sizeof line);
    for (int64_t i = 0; i < d; ++i) column[i * panel] = line[i];
  }
}

// Values as they are: panels of kPanel features, each n x kPanel. True where all of them are finite.
template <class T>
bool pack_v(const char* p, int64_t row, int64_t step, int64_t n, int64_t d, void* to) {
  using M = typename Heads<T>::M;
  constexpr int64_t panel = kPanel<M>;
  const int64_t panels = (d + panel - 1) / panel;
  typename M::S line[kMostFeatures + panel], odd = 0;
  T room[kMostFeatures];
  typename M::S* out = (typename M::S*)to;
  for (int64_t j = 0; j < n; ++j) {
    gather_row<T>(p + j * row, step, d, line, room);
    for (int64_t i = 0; i < d; ++i) odd += line[i] * 0;
    for (int64_t i = d; i < panels * panel; ++i) line[i] = 0;
    for (int64_t q = 0; q < panels; ++q)
      __builtin_memcpy(out + (q * n + j) * panel, line + q * panel, sizeof(typename M::S) * panel);
  }
  return odd == 0;
}

// ---- scores to weights

// A row's pivot may lie this far below its greatest score before O is rescaled: weights grow to exp(8) at most.
constexpr double kRise = 8;

// exp(x) for x <= kRise, exactly 0 below the floor, where no subnormal numbers are made. NaN stays NaN.
template <class V, int degree>
struct Weight {
  using C = Log2e<V>;
  using S = typename V::Scalar;
  static constexpr S floor = sizeof(S) == 4 ? (S)-87 : (S)-708, magic = C::magic - (sizeof(S) == 4 ? 64 : 512);
  template <int n>
  static OSM_INLINE void of(V (&d)[n]) {
    V z[n], f[n], x[n];
    uint32_t live[n];
    OSM_EACH live[i] = above(d[i], V::set(floor));
    OSM_EACH x[i] = max(V::set(floor), d[i]);
    OSM_EACH z[i] = fma(x[i], V::set(C::high), V::set(magic));
    OSM_EACH f[i] = fms(x[i], V::set(C::high), sub(z[i], V::set(magic)));
    OSM_EACH f[i] = fma(x[i], V::set(C::low), f[i]);
    polynomial<degree>(f, x);
    OSM_EACH d[i] = select(live[i], mul(x[i], power(z[i])), V::set(0));
  }
  static OSM_INLINE S one(S x) {
    V d[1] = {V::set(x)};
    of(d);
    S all[V::W];
    store(all, d[0]);
    return all[0];
  }
};

// tanh(x) within a few units of roundoff: a series where it is small, the exponential elsewhere.
template <class V, int degree>
OSM_INLINE V tanh_of(V x) {
  using S = typename V::Scalar;
  const V size = max(x, sub(V::set(0), x)), t = mul(x, x);
  // x - x^3/3 + 2 x^5/15 - ...: the terms up to x^21 leave 3e-9 at 0.6 and 1e-17 at 0.25.
  constexpr double c[] = {-1.0 / 3,
                          2.0 / 15,
                          -17.0 / 315,
                          62.0 / 2835,
                          -1382.0 / 155925,
                          21844.0 / 6081075,
                          -929569.0 / 638512875,
                          6404582.0 / 10854718875.0,
                          -443861162.0 / 1856156927625.0,
                          18888466084.0 / 194896477400625.0};
  V series = V::set((S)c[9]);
  for (int i = 8; i >= 0; --i) series = fma(series, t, V::set((S)c[i]));
  series = fma(mul(series, t), x, x);
  V e[1] = {mul(size, V::set(-2))};
  Weight<V, degree>::of(e);
  const V whole = div(sub(V::set(1), e[0]), add(V::set(1), e[0]));
  const V signed_whole = select(above(x, V::set(0)), whole, sub(V::set(0), whole));
  return select(above(size, V::set(sizeof(S) == 4 ? (S)0.5 : (S)0.2)), signed_whole, series);
}

// The final scores of a row: scale, softcap, bias, slope, and -inf where it may not look.
template <class T>
void final_scores(const AttentionBlock& b, const AttentionRow& rule, typename Heads<T>::M::S* s, int64_t padded) {
  using V = typename Heads<T>::M::V;
  using S = typename V::Scalar;
  const V scale = V::set((S)b.scale);
  if (b.softcap > 0) {
    const V inverse = V::set((S)(b.scale / b.softcap)), cap = V::set((S)b.softcap);
    for (int64_t j = 0; j < padded; j += V::W)
      store(s + j, mul(cap, tanh_of<V, Heads<T>::degree>(mul(V::load(s + j), inverse))));
  } else {
    for (int64_t j = 0; j < padded; j += V::W) store(s + j, mul(V::load(s + j), scale));
  }
  // A bias of -inf is a mask: what the score was, even NaN, does not count.
  const S out = (S)-kInf;
  const auto plus = [&](int64_t j, S bias) { s[j] = bias == out ? out : s[j] + bias; };
  const S* bias = (const S*)rule.bias;
  if (bias && rule.bias_step == (int64_t)sizeof(S))
    for (int64_t j = rule.lo; j < rule.hi; ++j) plus(j, bias[j]);
  else if (bias)
    for (int64_t j = rule.lo; j < rule.hi; ++j) plus(j, *(const S*)((const char*)bias + j * rule.bias_step));
  if (rule.slope != 0)
    for (int64_t j = rule.lo; j < rule.hi; ++j) {
      const int64_t away = rule.away + j;
      s[j] -= (S)rule.slope * (S)(away < 0 ? -away : away);
    }
  if (rule.mask)
    for (int64_t j = rule.lo; j < rule.hi; ++j) s[j] = rule.mask[j * rule.mask_step] ? s[j] : out;
}

template <class V>
OSM_INLINE double greatest(const typename V::Scalar* s, int64_t padded) {
  using S = typename V::Scalar;
  V top[4];
  for (auto& t : top) t = V::set((S)-kInf);
  int64_t j = 0;
  for (; j + 4 * V::W <= padded; j += 4 * V::W)
    for (int i = 0; i < 4; ++i) top[i] = max(V::load(s + j + i * V::W), top[i]);
  for (; j < padded; j += V::W) top[0] = max(V::load(s + j), top[0]);
  return (double)hmax(max(max(top[0], top[1]), max(top[2], top[3])));
}

// s becomes exp(scale * s - pivot); returns the sum.
template <class V, int degree>
OSM_INLINE double weigh(typename V::Scalar* s, int64_t padded, double scale, double pivot) {
  using S = typename V::Scalar;
  const V by = V::set((S)scale), from = V::set((S)pivot);
  V sum[4];
  for (auto& t : sum) t = V::set(0);
  int64_t j = 0;
  for (; j + 4 * V::W <= padded; j += 4 * V::W) {
    V d[4];
    for (int i = 0; i < 4; ++i) d[i] = fms(V::load(s + j + i * V::W), by, from);
    Weight<V, degree>::of(d);
    for (int i = 0; i < 4; ++i) store(s + j + i * V::W, d[i]), sum[i] = add(sum[i], d[i]);
  }
  for (; j < padded; j += V::W) {
    V d[1] = {fms(V::load(s + j), by, from)};
    Weight<V, degree>::of(d);
    store(s + j, d[0]), sum[0] = add(sum[0], d[0]);
  }
  S lanes[V::W];
  store(lanes, add(add(sum[0], sum[1]), add(sum[2], sum[3])));
  double total = 0;
  for (const S lane : lanes) total += (double)lane;
  return total;
}

// One row of scores becomes its weights; pivot, sum and the row of O go along. `live` (or null) gets which keys count.
template <class T>
void soften(const AttentionBlock& b, int r, typename Heads<T>::M::S* s, int64_t padded, uint8_t* live) {
  using M = typename Heads<T>::M;
  using V = typename M::V;
  using S = typename V::Scalar;
  const AttentionRow& rule = b.rows[r];
  AttentionState& state = b.states[r];
  const bool whole = !rule.mask && !rule.bias && rule.slope == 0 && !(b.softcap > 0) && b.scale > 0;
  if (!whole) final_scores<T>(b, rule, s, padded);
  for (int64_t j = 0; j < rule.lo; ++j) s[j] = (S)-kInf;
  for (int64_t j = rule.hi; j < padded; ++j) s[j] = (S)-kInf;
  if (live)
    for (int64_t j = 0; j < padded; ++j) live[j] = s[j] != (S)-kInf;
  const double scale = whole ? (double)(S)b.scale : 1.0;
  const double top = (double)(S)(greatest<V>(s, padded) * scale);
  S* o = (S*)b.o + r * b.o_stride;
  if (!(top <= state.pivot + kRise)) {
    if (top == kInf) {  // the law: NaN, with an infinite log-sum-exp unless a NaN is there too
      bool nan = state.sum != state.sum;
      for (int64_t j = 0; j < padded; ++j) nan |= s[j] != s[j];
      state.sum = nan ? __builtin_nan("") : 1, state.pivot = kInf;  // later scores weigh nothing beside it
      for (int64_t i = 0; i < b.o_stride; ++i) o[i] = (S)__builtin_nan("");
      for (int64_t j = 0; j < padded; ++j) s[j] = 0;
      return;
    }
    const S factor = Weight<V, Heads<T>::degree>::one((S)(state.pivot - top));
    state.sum *= (double)factor, state.pivot = top;
    const V by = V::set(factor);
    for (int64_t i = 0; i < b.o_stride; i += V::W) store(o + i, mul(V::load(o + i), by));
  } else if (state.pivot == -kInf) {
    // Nothing seen so far and nothing here; a row of NaN has no maximum either.
    bool nan = false;
    for (int64_t j = 0; j < padded; ++j) nan |= s[j] != s[j], s[j] = s[j] != s[j] ? s[j] : 0;
    if (nan) state.sum = __builtin_nan(""), state.pivot = 0;
    return;
  }
  state.sum += weigh<V, Heads<T>::degree>(s, padded, scale, state.pivot);
}

// O += P * V by the keys that count, where V holds what is not finite: 0 times it is not 0. In the order and with the
// roundings of panel_product, so that what nobody looks at leaves no trace in the bits.
template <class T>
void careful_values(const AttentionBlock& b, int r, const typename Heads<T>::M::S* p, const uint8_t* live) {
  using M = typename Heads<T>::M;
  using V = typename M::V;
  using S = typename M::S;
  constexpr int64_t panel = kPanel<M>;
  constexpr S least = sizeof(S) == 4 ? (S)0x1p-126 : (S)0x1p-1022;
  S* o = (S*)b.o + r * b.o_stride;
  for (int64_t j = 0; j < b.keys; ++j) {
    if (!live[j]) continue;
    for (int64_t i = 0; i < b.dv; i += V::W) {
      const S* v = (const S*)b.v + (i / panel * b.keys + j) * panel + i % panel;
      if (p[j] != 0) {
        store(o + i, M::product(V::set(p[j]), V::load(v), V::load(o + i)));
        continue;
      }
      for (int64_t q = 0; q < V::W; ++q)  // a weight that underflowed is not nothing to an infinity
        if (v[q] * 0 != 0) o[i + q] += least * v[q];
    }
  }
}

template <class T>
void attention_block(const AttentionBlock& b) {
  using M = typename Heads<T>::M;
  using S = typename M::S;
  using V = typename M::V;
  constexpr int64_t panel = kPanel<M>;
  const int64_t padded = (b.keys + V::W - 1) / V::W * V::W;
  S* s = (S*)b.scores;
  for (int64_t j = 0; j < b.keys; j += panel) {
    const int64_t vectors = (b.keys - j + V::W - 1) / V::W;
    panel_product<M, false>((int)vectors, b.count, (const S*)b.q, b.q_stride, (const S*)b.k + j * b.d, b.d, s + j,
                            b.score_stride);
  }
  for (int r = 0; r < b.count; ++r) {
    uint8_t live[kMostKeys];
    soften<T>(b, r, s + r * b.score_stride, padded, b.finite ? nullptr : live);
    if (!b.finite) careful_values<T>(b, r, s + r * b.score_stride, live);
  }
  if (!b.finite) return;
  constexpr int64_t grain = 128;  // keys at a time: a panel of so many values stays in the first-level cache
  for (int64_t i = 0; i < b.dv; i += panel)
    for (int64_t j = 0; j < b.keys; j += grain) {
      const int64_t n = b.keys - j < grain ? b.keys - j : grain, vectors = (b.dv - i + V::W - 1) / V::W;
      panel_product<M, true>((int)vectors, b.count, s + j, b.score_stride, (const S*)b.v + i * b.keys + j * panel, n,
                             (S*)b.o + i, b.o_stride);
    }
}

// a becomes the merge of a and b: pivots, sums and rows of O.
template <class T>
void attention_merge(AttentionState* a, void* a_o, const AttentionState* b, const void* b_o, int64_t width) {
  using V = typename Heads<T>::M::V;
  using S = typename V::Scalar;
  if (b->pivot == -kInf && b->sum == 0) return;
  S *to = (S*)a_o, *from = (S*)b_o;
  if (a->pivot == -kInf && a->sum == 0) {
    *a = *b;
    __builtin_memcpy(to, from, (size_t)width * sizeof(S));
    return;
  }
  const double m = a->pivot > b->pivot ? a->pivot : b->pivot;
  const auto factor = [m](double pivot) {
    return pivot == m ? (S)1 : Weight<V, Heads<T>::degree>::one((S)(pivot - m));
  };
  const S fa = factor(a->pivot), fb = factor(b->pivot);
  a->pivot = m, a->sum = a->sum * (double)fa + b->sum * (double)fb;
  for (int64_t i = 0; i < width; i += V::W)
    store(to + i, fma(V::load(from + i), V::set(fb), mul(V::load(to + i), V::set(fa))));
}

OSM_INLINE void narrow_row(const float* p, int64_t n, float* to) { __builtin_memcpy(to, p, (size_t)n * 4); }
OSM_INLINE void narrow_row(const double* p, int64_t n, double* to) { __builtin_memcpy(to, p, (size_t)n * 8); }
OSM_INLINE void narrow_row(const float* p, int64_t n, bf16* to) {
  for (int64_t i = 0; i < n; ++i) {
    uint32_t bits;
    __builtin_memcpy(&bits, p + i, 4);
    // To nearest, ties to even; a NaN keeps a bit.
    to[i].bits = p[i] != p[i] ? (uint16_t)0x7fc0 : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
}
OSM_INLINE void narrow_row(const float* p, int64_t n, f16* to) {
  f16 some[2 * F32::W];
  float full[2 * F32::W] = {};
  for (int64_t i = 0; i < n; i += 2 * F32::W) {
    const int64_t here = n - i < 2 * F32::W ? n - i : 2 * F32::W;
    for (int64_t j = 0; j < here; ++j) full[j] = p[i + j];
    store2(some, F32::load(full), F32::load(full + F32::W));
    for (int64_t j = 0; j < here; ++j) to[i + j] = some[j];
  }
}

// o = O / sum, one row, elements `step` bytes apart. `by` is what O is multiplied by.
template <class T>
void attention_finish(const void* row, double by, int64_t n, char* to, int64_t step) {
  using S = typename Heads<T>::M::S;
  S line[kMostFeatures];
  T made[kMostFeatures];
  for (int64_t i = 0; i < n; ++i) line[i] = (S)((const S*)row)[i] * (S)by;
  narrow_row(line, n, made);
  if (step == (int64_t)sizeof(T)) {
    __builtin_memcpy(to, made, (size_t)n * sizeof(T));
    return;
  }
  for (int64_t i = 0; i < n; ++i) __builtin_memcpy(to + i * step, made + i, sizeof(T));
}

template <class T>
constexpr AttentionKernels attention_kernels() {
  return {kPanel<typename Heads<T>::M>,
          Heads<T>::M::V::W,
          (int64_t)sizeof(typename Heads<T>::M::S),
          pack_q<T>,
          pack_k<T>,
          pack_v<T>,
          attention_block<T>,
          attention_merge<T>,
          attention_finish<T>};
}

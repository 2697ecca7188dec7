// Attention of a tile of query rows over a chunk of keys: scores, softmax, and the sum of values, in one pass.
// Included inside the namespace of an instruction set, after attention_scores.inl.h.
//
// K and V of a chunk are packed once and serve many tiles of queries; few rows have them packed piece by piece on the
// way, in the first-level cache. A row keeps its pivot, its sum and its row of O; the pivot moves, and O is rescaled,
// where a score rises more than kRise above it.

template <class V>
OSM_INLINE double greatest(const typename V::Scalar* s, int64_t from, int64_t end) {
  using S = typename V::Scalar;
  V top[4];
  for (auto& t : top) t = V::set((S)-kInf);
  for (int64_t j = from; j < end; j += 4 * V::W)
    for (int i = 0; i < 4; ++i) top[i] = max(V::load(s + j + i * V::W), top[i]);
  return (double)hmax(max(max(top[0], top[1]), max(top[2], top[3])));
}

// s becomes exp(scale * s - pivot); returns the sum. Which of the partial sums a key goes to follows from its place in
// the chunk alone. The product is rounded by itself, as it is where a bias or mask is laid over the scores: one that
// changes nothing changes no bit.
template <class V, int degree>
OSM_INLINE double weigh(typename V::Scalar* s, int64_t from, int64_t end, double scale, double pivot) {
  using S = typename V::Scalar;
  const V by = V::set((S)scale), less = V::set((S)pivot);
  V sum[4];
  for (auto& t : sum) t = V::set(0);
  for (int64_t j = from; j < end; j += 4 * V::W) {
    V d[4];
    for (int i = 0; i < 4; ++i) d[i] = sub(mul(V::load(s + j + i * V::W), by), less);
    Weight<V, degree>::of(d);
    for (int i = 0; i < 4; ++i) store(s + j + i * V::W, d[i]), sum[i] = add(sum[i], d[i]);
  }
  S lanes[V::W];
  store(lanes, add(add(sum[0], sum[1]), add(sum[2], sum[3])));
  double total = 0;
  for (const S lane : lanes) total += (double)lane;
  return total;
}

// o *= factor. A factor of 0 stands for one that underflowed, which no infinity comes to an end by.
template <class V>
OSM_INLINE void rescale(typename V::Scalar* o, int64_t n, typename V::Scalar factor) {
  using S = typename V::Scalar;
  if (factor != 0) {
    for (int64_t i = 0; i < n; i += V::W) store(o + i, mul(V::load(o + i), V::set(factor)));
    return;
  }
  for (int64_t i = 0; i < n; ++i) o[i] = o[i] * 0 == 0 ? (S)0 : o[i];
}

// One row of scores becomes its weights; pivot, sum and the row of O go along. `live` (or null) gets which keys count.
template <class T>
void soften(const AttentionBlock& b, int r, typename Heads<T>::S* s, int64_t end, uint8_t* live) {
  using V = typename Heads<T>::V;
  using S = typename V::Scalar;
  const AttentionRow& rule = b.rows[r];
  AttentionState& state = b.states[r];
  const bool plain = plain_scores(b, rule);
  if (!plain) final_scores<T>(b, rule, s, end);
  hide_outside(b, rule, s, end);
  if (live)
    for (int64_t j = b.from; j < end; ++j) live[j] = s[j] != (S)-kInf && (!b.drop || kept(b, rule, j));
  const double scale = plain ? (double)(S)b.scale : 1.0;
  const double top = (double)(S)(greatest<V>(s, b.from, end) * scale);
  S* o = (S*)b.o + r * b.o_stride;
  if (!(top <= state.pivot + kRise)) {
    if (top == kInf) {  // the law: NaN, with an infinite log-sum-exp unless a NaN is there too
      bool nan = state.sum != state.sum;
      for (int64_t j = b.from; j < end; ++j) nan |= s[j] != s[j];
      state.sum = nan ? __builtin_nan("") : 1, state.pivot = kInf;  // later scores weigh nothing beside it
      for (int64_t i = 0; i < b.o_stride; ++i) o[i] = (S)__builtin_nan("");
      for (int64_t j = b.from; j < end; ++j) s[j] = 0;
      return;
    }
    const S factor = Weight<V, Heads<T>::degree>::one((S)(state.pivot - top));
    state.sum *= (double)factor, state.pivot = top;
    rescale<V>(o, b.o_stride, factor);
  } else if (state.pivot == -kInf) {
    // Nothing seen so far and nothing here; a row of NaN has no maximum either.
    bool nan = false;
    for (int64_t j = b.from; j < end; ++j) nan |= s[j] != s[j], s[j] = s[j] != s[j] ? s[j] : 0;
    if (nan) state.sum = __builtin_nan(""), state.pivot = 0;
    return;
  }
  state.sum += weigh<V, Heads<T>::degree>(s, b.from, end, scale, state.pivot);
  if (b.drop) drop_some(b, rule, s, end);
}

// O += P * V by the keys [from, to) that count, where V holds what is not finite: 0 times it is not 0. In the order and
// with the roundings of panel_product, so that what nobody looks at leaves no trace in the bits. `v` is packed from
// `packed` keys, the first of them `first`.
template <class T>
void careful_values(const AttentionBlock& b, int r, const typename Heads<T>::S* p, const uint8_t* live,
                    const typename Heads<T>::S* v, int64_t packed, int64_t first, int64_t from, int64_t to) {
  using V = typename Heads<T>::V;
  using S = typename V::Scalar;
  constexpr int64_t panel = kPanel<V>;
  constexpr S least = sizeof(S) == 4 ? (S)0x1p-126 : (S)0x1p-1022;
  S* o = (S*)b.o + r * b.o_stride;
  for (int64_t i = 0; i < b.dv; i += V::W) {
    V sum = V::set(0);
    for (int64_t j = from; j < to; ++j) {
      if (!live[j]) continue;
      const S* x = v + (i / panel * packed + (j - first)) * panel + i % panel;
      if (p[j] != 0) {
        sum = fma(V::set(p[j]), V::load(x), sum);
        continue;
      }
      S lanes[V::W];
      store(lanes, sum);
      for (int64_t q = 0; q < V::W; ++q)  // a weight that underflowed is not nothing to an infinity
        if (x[q] * 0 != 0) lanes[q] += least * x[q];
      sum = V::load(lanes);
    }
    store(o + i, add(V::load(o + i), sum));
  }
}

// O += P * V of keys [from, to), which `v` is packed from as the keys first to first + packed.
template <class T>
void add_values(const AttentionBlock& b, const uint8_t* live, bool finite, const typename Heads<T>::S* v,
                int64_t packed, int64_t first, int64_t from, int64_t to) {
  using V = typename Heads<T>::V;
  using S = typename V::Scalar;
  constexpr int64_t panel = kPanel<V>;
  const S* s = (const S*)b.scores;
  if (!finite) {
    for (int r = 0; r < b.count; ++r)
      careful_values<T>(b, r, s + r * b.score_stride, live + r * kMostKeys, v, packed, first, from, to);
    return;
  }
  for (int64_t i = 0; i < b.dv; i += panel) {
    const int64_t vectors = (b.dv - i + V::W - 1) / V::W;
    panel_product<V, true>((int)vectors, b.count, s + from, b.score_stride, v + i * packed + (from - first) * panel,
                           to - from, (S*)b.o + i, b.o_stride);
  }
}

template <class T>
void attention_block(const AttentionBlock& b) {
  using V = typename Heads<T>::V;
  using S = typename V::Scalar;
  constexpr int64_t panel = kPanel<V>;
  const int64_t end = padded_end<V>(b);
  S *s = (S*)b.scores, *room = (S*)b.room;
  for (int64_t j = b.from; j < b.to; j += panel) {
    const int64_t n = b.to - j < panel ? b.to - j : panel;
    if (!b.k) b.pack_k(b.keys, j, n, b.d, room);
    whole_product<V>((int)((n + V::W - 1) / V::W), b.count, (const S*)b.q, b.q_stride,
                     b.k ? (const S*)b.k + j * b.d : room, b.d, s + j, b.score_stride);
  }
  // Which keys count is kept where it may be asked for.
  uint8_t* live = b.k && b.finite ? nullptr : b.live;
  for (int r = 0; r < b.count; ++r) soften<T>(b, r, s + r * b.score_stride, end, live ? live + r * kMostKeys : nullptr);
  for (int64_t j = b.from, next; j < b.to; j = next) {
    next = grain_end(b, j);
    if (b.v) {
      add_values<T>(b, live, b.finite, (const S*)b.v, b.packed, 0, j, next);
    } else {
      const bool finite = b.pack_v(b.values, j, next - j, b.dv, room);
      add_values<T>(b, live, finite, room, next - j, j, j, next);
    }
  }
}

// a becomes the merge of a and b: pivots, sums and rows of O.
template <class T>
void attention_merge(AttentionState* a, void* a_o, const AttentionState* b, const void* b_o, int64_t width) {
  using V = typename Heads<T>::V;
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
  rescale<V>(to, width, fa);
  if (fb != 0)
    for (int64_t i = 0; i < width; i += V::W) store(to + i, fma(V::load(from + i), V::set(fb), V::load(to + i)));
  else
    for (int64_t i = 0; i < width; ++i) to[i] += from[i] * 0 == 0 ? (S)0 : from[i];
}

template <class T>
constexpr AttentionKernels attention_kernels() {
  using V = typename Heads<T>::V;
  AttentionKernels k{};
  k.panel = kPanel<V>, k.width = V::W, k.group = 4 * V::W, k.size = (int64_t)sizeof(typename V::Scalar);
  k.pack_q = pack_q<T>;
  if constexpr (sizeof(typename V::Scalar) == 8) {
    k.pack_k[(int)Stored::f64] = pack_k<double, V>, k.pack_v[(int)Stored::f64] = pack_v<double, V>;
  } else {
    k.pack_k[(int)Stored::f32] = pack_k<float, V>, k.pack_v[(int)Stored::f32] = pack_v<float, V>;
    k.pack_k[(int)Stored::f16] = pack_k<f16, V>, k.pack_v[(int)Stored::f16] = pack_v<f16, V>;
    k.pack_k[(int)Stored::bf16] = pack_k<bf16, V>, k.pack_v[(int)Stored::bf16] = pack_v<bf16, V>;
    k.pack_k[(int)Stored::e4m3] = pack_k<e4m3, V>, k.pack_v[(int)Stored::e4m3] = pack_v<e4m3, V>;
    k.pack_k[(int)Stored::e5m2] = pack_k<e5m2, V>, k.pack_v[(int)Stored::e5m2] = pack_v<e5m2, V>;
    k.pack_k[(int)Stored::int8] = pack_k<int8_t, V>, k.pack_v[(int)Stored::int8] = pack_v<int8_t, V>;
  }
  k.block = attention_block<T>, k.gradient = attention_gradient<T>, k.merge = attention_merge<T>;
  k.sums_add = attention_sums_add<typename V::Scalar>, k.sums_merge = attention_sums_merge<typename V::Scalar>;
  k.sums_read = attention_sums_read<typename V::Scalar>;
  k.slices = kAttentionSlices<typename V::Scalar>;
  k.finish = attention_finish<T, typename V::Scalar>;
  k.finish_wide = attention_finish<typename V::Scalar, typename V::Scalar>;
  k.dot = attention_dot<T>, k.add = attention_add<V>, k.peak = arithmetic_peak<V>;
  return k;
}

// The gradient of attention: a tile of query rows against a chunk of keys, weights made anew from the log-sum-exps.
// Included inside the namespace of an instruction set, after attention_scores.inl.h.
//
//   P = exp(score - lse)    dV += P^T dO    dP = dO V^T    dS = P * (dP - delta)    dQ += dS K    dK += dS^T Q
//
// With dropout P of dV and dP are multiplied by what keeps a weight. The factor `scale` of dQ and dK comes last, where
// their sums are done.

// One row: s, the products of Q and K, becomes the weights that dV takes, g, the products of dO and V, the gradient of
// the scores. `live` (or null) gets which keys count.
template <class T>
void row_gradient(const AttentionGradient& b, int r, typename Heads<T>::S* s, typename Heads<T>::S* g, int64_t end,
                  uint8_t* live) {
  using V = typename Heads<T>::V;
  using S = typename V::Scalar;
  const AttentionRow& rule = b.rows[r];
  const auto nothing = [&](int64_t from, int64_t to) {
    for (int64_t j = from; j < to; ++j) s[j] = g[j] = 0;
    if (live)
      for (int64_t j = from; j < to; ++j) live[j] = 0;
  };
  if (b.lse[r] == -kInf || rule.lo >= rule.hi) return nothing(b.from, end);
  S* slopes = b.softcap > 0 ? (S*)b.slopes : nullptr;
  const bool plain = plain_scores(b, rule);
  if (!plain) final_scores<T>(b, rule, s, end, slopes);
  hide_outside(b, rule, s, end);
  if (live)
    for (int64_t j = b.from; j < end; ++j) live[j] = s[j] != (S)-kInf;
  // +inf among the scores makes the row NaN, as the law has it.
  const double lse = b.lse[r] == kInf ? __builtin_nan("") : b.lse[r];
  const V by = V::set(plain ? (S)b.scale : (S)1), from = V::set((S)lse);
  const V rest = V::set((S)(lse - (double)(S)lse + b.rest[r]));
  const V up = V::set((S)b.kept), zero = V::set(0), least = V::set((S)-kInf);
  uint32_t keep;
  V raw, p[1], dp;
  const auto weigh_keys = [&](int64_t j) OSM_LAMBDA_INLINE {
    raw = V::load(s + j);
    p[0] = sub(sub(mul(raw, by), from), rest);
    Weight<V, Heads<T>::degree>::of(p);
    // Where nothing is to be seen: exactly 0, whatever the rest of the row is. A NaN is seen.
    p[0] = keep_unequal(p[0], raw, least), dp = keep_unequal(V::load(g + j), raw, least);
    if (!b.drop) return;
    keep = 0;
    for (int64_t i = 0; i < V::W; ++i) keep |= (kept(b, rule, j + i) & 1u) << i;
    dp = select(keep, mul(dp, up), zero);
  };
  V delta = V::set((S)b.delta[r]);
  if (sizeof(T) == 2 && rule.whole) {
    // The output that delta was made of is rounded to 16 bits, and of few keys the differences dP - delta are small.
    // Here all of them are at hand.
    V sum = zero;
    S lanes[V::W];
    double all = -b.d_lse[r];
    for (int64_t j = b.from; j < end; j += V::W) weigh_keys(j), sum = fma(p[0], dp, sum);
    store(lanes, sum);
    for (const S lane : lanes) all += (double)lane;
    delta = V::set((S)all);
  }
  for (int64_t j = b.from; j < end; j += V::W) {
    weigh_keys(j);
    const V dropped = b.drop ? select(keep, mul(p[0], up), zero) : p[0];
    // Without `live` all operands are finite: a weight of 0 has no gradient, whatever overflowed.
    const V ds = mul(p[0], sub(dp, delta));
    store(g + j, live ? keep_unequal(ds, raw, least) : keep_unequal(ds, p[0], zero));
    store(s + j, dropped);
  }
  if (b.d_bias) {
    const auto put = [&](auto* to) {
      for (int64_t j = rule.lo; j < rule.hi; ++j) {
        auto* at = (decltype(to))((char*)to + j * b.d_bias_step);
        *at += g[j];
      }
    };
    if (b.d_bias_double)
      put((double*)b.d_bias[r]);
    else
      put((float*)b.d_bias[r]);
  }
  if (slopes)
    for (int64_t j = b.from; j < end; ++j) g[j] = g[j] == 0 ? 0 : g[j] * slopes[j];
}

// The three products by the pairs that count, where an operand is not finite: in the order and with the roundings of
// panel_product.
template <class T>
void careful_gradients(const AttentionGradient& b) {
  using V = typename Heads<T>::V;
  using S = typename V::Scalar;
  constexpr int64_t panel = kPanel<V>;
  // to += sum of by(i) * line i of the panels over i in [from, end), those left out where by(i) says so.
  const auto add_lines = [](int64_t from, int64_t end, auto by, const S* panels, int64_t lines, int64_t n, S* to) {
    for (int64_t c = 0; c < n; c += V::W) {
      V sum = V::set(0);
      for (int64_t i = from; i < end; ++i)
        if (const S* factor = by(i))
          sum = fma(V::set(*factor), V::load(panels + (c / panel * lines + i) * panel + c % panel), sum);
      store(to + c, add(V::load(to + c), sum));
    }
  };
  const S *scores = (const S*)b.scores, *grads = (const S*)b.grads;
  const auto at = [&](const S* all, int64_t r, int64_t j) -> const S* {
    return b.live[r * kMostKeys + j] ? all + r * b.score_stride + j : nullptr;
  };
  for (int64_t j = b.from; j < b.to; ++j) {
    // A key that dropout leaves out has a weight of exactly 0, and its value is not read.
    const auto weight = [&](int64_t r) {
      const S* p = at(scores, r, j);
      return p && *p != 0 ? p : nullptr;
    };
    const auto grad = [&](int64_t r) { return at(grads, r, j); };
    add_lines(0, b.count, weight, (const S*)b.d_panels, b.count, b.dv, (S*)b.dv_sum + j * b.dv_stride);
    add_lines(0, b.count, grad, (const S*)b.q_panels, b.count, b.d, (S*)b.dk_sum + j * b.dk_stride);
  }
  for (int r = 0; r < b.count; ++r)
    for (int64_t j = b.from, next; j < b.to; j = next) {
      next = grain_end(b, j);
      const auto grad = [&](int64_t key) { return at(grads, r, key); };
      add_lines(j, next, grad, (const S*)b.kv, b.packed, b.d, (S*)b.dq_sum + r * b.dq_stride);
    }
}

template <class T>
void attention_gradient(const AttentionGradient& b) {
  using V = typename Heads<T>::V;
  using S = typename V::Scalar;
  constexpr int64_t panel = kPanel<V>;
  const int64_t end = padded_end<V>(b);
  S *s = (S*)b.scores, *g = (S*)b.grads;
  const auto vectors = [](int64_t n) { return (int)((n + V::W - 1) / V::W); };
  for (int64_t j = b.from; j < b.to; j += panel) {
    whole_product<V>(vectors(b.to - j), b.count, (const S*)b.q, b.q_stride, (const S*)b.k + j * b.d, b.d, s + j,
                     b.score_stride);
    whole_product<V>(vectors(b.to - j), b.count, (const S*)b.d_out, b.d_stride, (const S*)b.vt + j * b.dv, b.dv, g + j,
                     b.score_stride);
  }
  for (int r = 0; r < b.count; ++r)
    row_gradient<T>(b, r, s + r * b.score_stride, g + r * b.score_stride, end,
                    b.finite ? nullptr : b.live + r * kMostKeys);
  if (b.scores_only) return;
  if (!b.finite) return careful_gradients<T>(b);
  const int keys = (int)(b.to - b.from);
  for (int64_t i = 0; i < b.dv; i += panel)
    panel_product<V, true, true>(vectors(b.dv - i), keys, s + b.from, b.score_stride,
                                 (const S*)b.d_panels + i * b.count, b.count, (S*)b.dv_sum + b.from * b.dv_stride + i,
                                 b.dv_stride);
  for (int64_t i = 0; i < b.d; i += panel) {
    panel_product<V, true, true>(vectors(b.d - i), keys, g + b.from, b.score_stride, (const S*)b.q_panels + i * b.count,
                                 b.count, (S*)b.dk_sum + b.from * b.dk_stride + i, b.dk_stride);
    for (int64_t j = b.from, next; j < b.to; j = next) {
      next = grain_end(b, j);
      panel_product<V, true>(vectors(b.d - i), b.count, g + j, b.score_stride,
                             (const S*)b.kv + i * b.packed + j * panel, next - j, (S*)b.dq_sum + i, b.dq_stride);
    }
  }
}

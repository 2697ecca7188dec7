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
  const V by = V::set(plain ? (S)b.scale : (S)1), from = V::set(b.lse[r] == kInf ? (S)__builtin_nan("") : (S)b.lse[r]);
  const V delta = V::set((S)b.delta[r]), up = V::set((S)b.kept), zero = V::set(0), least = V::set((S)-kInf);
  for (int64_t j = b.from; j < end; j += V::W) {
    const V raw = V::load(s + j);
    const uint32_t seen = above(raw, least);  // NaN too
    V p[1] = {fms(raw, by, from)};
    Weight<V, Heads<T>::degree>::of(p);
    p[0] = select(seen, p[0], zero);
    V dp = V::load(g + j), dropped = p[0];
    if (b.drop) {
      uint32_t keep = 0;
      for (int64_t i = 0; i < V::W; ++i) keep |= (kept(b, rule, j + i) & 1u) << i;
      dp = select(keep, mul(dp, up), zero), dropped = select(keep, mul(dropped, up), zero);
    }
    V ds = select(seen, mul(p[0], sub(dp, delta)), zero);
    // Without `live` all operands are finite: a weight of 0 has no gradient, whatever overflowed.
    if (!live) ds = select(above(p[0], zero), ds, zero);
    store(s + j, dropped), store(g + j, ds);
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
  const auto axpy = [](S by, const S* panels, int64_t lines, int64_t at, int64_t n, S* to) {
    for (int64_t i = 0; i < n; i += V::W) {
      const V x = V::load(panels + (i / panel * lines + at) * panel + i % panel);
      store(to + i, fma(V::set(by), x, V::load(to + i)));
    }
  };
  for (int r = 0; r < b.count; ++r) {
    const S *p = (const S*)b.scores + r * b.score_stride, *ds = (const S*)b.grads + r * b.score_stride;
    for (int64_t j = b.from; j < b.to; ++j) {
      if (!b.live[r * kMostKeys + j]) continue;
      // A key that dropout leaves out has a weight of exactly 0, and its value is not read.
      if (p[j] != 0) axpy(p[j], (const S*)b.d_panels, b.count, r, b.dv, (S*)b.dv_sum + j * b.dv_stride);
      axpy(ds[j], (const S*)b.q_panels, b.count, r, b.d, (S*)b.dk_sum + j * b.dk_stride);
      axpy(ds[j], (const S*)b.kv, b.packed, j, b.d, (S*)b.dq_sum + r * b.dq_stride);
    }
  }
}

template <class T>
void attention_gradient(const AttentionGradient& b) {
  using V = typename Heads<T>::V;
  using S = typename V::Scalar;
  constexpr int64_t panel = kPanel<V>, grain = 128;
  const int64_t end = padded_end<V>(b);
  S *s = (S*)b.scores, *g = (S*)b.grads;
  const auto vectors = [](int64_t n) { return (int)((n + V::W - 1) / V::W); };
  for (int64_t j = b.from; j < b.to; j += panel) {
    panel_product<V, false>(vectors(b.to - j), b.count, (const S*)b.q, b.q_stride, (const S*)b.k + j * b.d, b.d, s + j,
                            b.score_stride);
    panel_product<V, false>(vectors(b.to - j), b.count, (const S*)b.d_out, b.d_stride, (const S*)b.vt + j * b.dv, b.dv,
                            g + j, b.score_stride);
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
    for (int64_t j = b.from; j < b.to; j += grain)
      panel_product<V, true>(vectors(b.d - i), b.count, g + j, b.score_stride,
                             (const S*)b.kv + i * b.packed + j * panel, b.to - j < grain ? b.to - j : grain,
                             (S*)b.dq_sum + i, b.dq_stride);
  }
}

// What attention's scores go through, forward and backward: exponential, softcap, bias, slopes, masks, dropout.
// Included inside the namespace of an instruction set, after attention_pack.inl.h.

// A row's pivot may lie this far below its greatest score before O is rescaled: weights grow to exp(8) at most.
constexpr double kRise = 8;

// Scores that are scale * q k and no more, and a scale that neither vanishes nor overflows in float: -inf times it has
// to stay -inf.
OSM_INLINE bool plain_scores(const AttentionScores& b, const AttentionRow& rule) {
  return !rule.mask && !rule.bias && rule.slope == 0 && !(b.softcap > 0) && b.scale > 0x1p-100 && b.scale < 0x1p100;
}

// Rows are gone through in groups of four registers, by place in the chunk.
template <class V>
int64_t padded_end(const AttentionScores& b) {
  return (b.to + 4 * V::W - 1) / (4 * V::W) * (4 * V::W);
}

// Values are summed kGrain keys at a time, by place in the chunk, and these sums are added to O: with long chains of
// additions the error would grow. A panel of so many values stays in the first-level cache.
OSM_INLINE int64_t grain_end(const AttentionScores& b, int64_t key) {
  const int64_t end = (key / kGrain + 1) * kGrain;
  return end < b.to ? end : b.to;
}

template <class S>
OSM_INLINE void hide_outside(const AttentionScores& b, const AttentionRow& rule, S* s, int64_t end) {
  const int64_t lo = rule.lo < end ? rule.lo : end;
  for (int64_t j = b.from; j < lo; ++j) s[j] = (S)-kInf;
  for (int64_t j = rule.hi > b.from ? rule.hi : b.from; j < end; ++j) s[j] = (S)-kInf;
}

// The final scores of a row, keys [b.from, end): scale, softcap, bias, slope, and -inf where it may not look. `slopes`
// (or null) gets what the softcap multiplies gradients by.
template <class T>
void final_scores(const AttentionScores& b, const AttentionRow& rule, typename Heads<T>::S* s, int64_t end,
                  typename Heads<T>::S* slopes = nullptr) {
  using V = typename Heads<T>::V;
  using S = typename V::Scalar;
  constexpr int degree = Heads<T>::degree;
  if (b.softcap > 0) {
    const V inverse = V::set((S)(b.scale / b.softcap)), cap = V::set((S)b.softcap);
    for (int64_t j = b.from; j < end; j += V::W) {
      V slope;
      const V t = tanh_of<V, degree>(mul(V::load(s + j), inverse), slopes ? &slope : nullptr);
      store(s + j, mul(cap, t));
      if (slopes) store(slopes + j, slope);
    }
  } else {
    const V scale = V::set((S)b.scale);
    for (int64_t j = b.from; j < end; j += V::W) store(s + j, mul(V::load(s + j), scale));
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
  if (rule.mask && rule.mask_step == 1)
    for (int64_t j = rule.lo; j < rule.hi; ++j) s[j] = rule.mask[j] ? s[j] : out;
  else if (rule.mask)
    for (int64_t j = rule.lo; j < rule.hi; ++j) s[j] = rule.mask[j * rule.mask_step] ? s[j] : out;
}

// Whether a key is kept by dropout: all bits set or none.
OSM_INLINE uint32_t kept(const AttentionScores& b, const AttentionRow& rule, int64_t key) {
  const uint32_t at = (uint32_t)(b.first_key + key) * kDieStep + rule.dice[0];
  return attention_die(at, rule.dice[1]) >= b.drop ? ~0u : 0u;
}
// s becomes 0 where dropped: by bits, as a select would not be made into vectors, and with all that is read in
// registers, a key's number one step from that eight keys before.
OSM_INLINE void drop_some(const AttentionScores& b, const AttentionRow& rule, float* s, int64_t end) {
  constexpr int lanes = F32::W > 1 ? 8 : 4;  // of what the length is a multiple of
  const uint32_t dice1 = rule.dice[1], drop = b.drop;
  uint32_t at[lanes];
  for (int i = 0; i < lanes; ++i) at[i] = (uint32_t)(b.first_key + b.from + i) * kDieStep + rule.dice[0];
  for (int64_t j = b.from; j < end; j += lanes) {
    uint32_t bits[lanes];
    __builtin_memcpy(bits, s + j, sizeof bits);
    for (int i = 0; i < lanes; ++i) {
      bits[i] &= attention_die(at[i], dice1) >= drop ? ~0u : 0u;
      at[i] += lanes * kDieStep;
    }
    __builtin_memcpy(s + j, bits, sizeof bits);
  }
}
OSM_INLINE void drop_some(const AttentionScores& b, const AttentionRow& rule, double* s, int64_t end) {
  for (int64_t j = b.from; j < end; ++j) s[j] = kept(b, rule, j) ? s[j] : 0;
}

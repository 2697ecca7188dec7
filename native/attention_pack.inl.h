// Attention's small matrix product and the packing of what goes into it. Included inside the namespace of an
// instruction set, which says how many registers a product keeps its sums in (kTileRows x kTileVectors).
//
// All products are C (rows x panel) += A (rows x n) * B (n x panel): Q with K turned, P with V, and the five of the
// gradient. A is read element by element, as it lies or turned; B lies in panels of kPanel columns. A sum of n products
// is one chain of fused multiply-adds from 0 on, and what C holds is added last: short chains, and few of them, keep
// the error of long sums small. The bits of an element depend on no other row.

template <class V, int vectors, bool more, bool turned>
void tile_rows(int rows, const typename V::Scalar* a, int64_t lda, const typename V::Scalar* b, int64_t n,
               typename V::Scalar* c, int64_t ldc) {
  const int64_t next = turned ? 1 : lda;
  for (; rows >= kTileRows; rows -= kTileRows, a += kTileRows * next, c += kTileRows * ldc)
    tile_product<V, kTileRows, vectors, more, turned>(a, lda, b, n, c, ldc);
  if constexpr (kTileRows > 4)
    if (rows >= 4) {
      tile_product<V, 4, vectors, more, turned>(a, lda, b, n, c, ldc);
      rows -= 4, a += 4 * next, c += 4 * ldc;
    }
  for (; rows >= 2; rows -= 2, a += 2 * next, c += 2 * ldc)
    tile_product<V, 2, vectors, more, turned>(a, lda, b, n, c, ldc);
  if (rows) tile_product<V, 1, vectors, more, turned>(a, lda, b, n, c, ldc);
}

template <class V>
double arithmetic_peak(int64_t n, double* sink) {
  using S = typename V::Scalar;
  V sum[kTileRows][kTileVectors], b[kTileVectors];
  for (auto& row : sum)
    for (V& x : row) x = V::set(0);
  for (int v = 0; v < kTileVectors; ++v) b[v] = V::set((S)(1 + *sink));
  V a = V::set((S)*sink);
  for (int64_t i = 0; i < n; ++i) {
    _Pragma("GCC unroll 16") for (int r = 0; r < kTileRows; ++r)
        _Pragma("GCC unroll 8") for (int v = 0; v < kTileVectors; ++v) sum[r][v] = fma(a, b[v], sum[r][v]);
  }
  S lanes[V::W];
  for (auto& row : sum)
    for (V& x : row) {
      store(lanes, x);
      *sink += (double)lanes[0];
    }
  return 2.0 * (double)(n * kTileRows * kTileVectors * V::W);
}

// One panel against all rows of a tile; a last panel of fewer columns takes as many vectors as it has.
template <class V, bool more, bool turned = false, int vectors = kTileVectors>
void panel_product(int wanted, int rows, const typename V::Scalar* a, int64_t lda, const typename V::Scalar* b,
                   int64_t n, typename V::Scalar* c, int64_t ldc) {
  if constexpr (vectors > 1)
    if (wanted < vectors) return panel_product<V, more, turned, vectors - 1>(wanted, rows, a, lda, b, n, c, ldc);
  tile_rows<V, vectors, more, turned>(rows, a, lda, b, n, c, ldc);
}

// C = A * B in pieces of 128 steps.
template <class V>
void whole_product(int wanted, int rows, const typename V::Scalar* a, int64_t lda, const typename V::Scalar* b,
                   int64_t n, typename V::Scalar* c, int64_t ldc) {
  constexpr int64_t piece = 128;
  panel_product<V, false>(wanted, rows, a, lda, b, n < piece ? n : piece, c, ldc);
  for (int64_t i = piece; i < n; i += piece)
    panel_product<V, true>(wanted, rows, a + i, lda, b + i * kPanel<V>, n - i < piece ? n - i : piece, c, ldc);
}

// ---- packing

struct e4m3 {
  uint8_t bits;
};
struct e5m2 {
  uint8_t bits;
};
OSM_INLINE void widen_row(const int8_t* p, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = (float)p[i];
}
// The 8-bit formats by their bits put where a float has them; the factor makes up for the other bias, and makes
// subnormal numbers normal.
OSM_INLINE void widen_row(const e4m3* p, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t size = p[i].bits & 0x7fu, sign = (p[i].bits & 0x80u) << 24;
    to[i] = size == 0x7f ? as_float(0x7fc00000u) : as_float(sign | size << 20) * 0x1p120f;
  }
}
OSM_INLINE void widen_row(const e5m2* p, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t size = p[i].bits & 0x7fu, sign = (p[i].bits & 0x80u) << 24;
    to[i] = size >= 0x7c ? as_float(sign | 0x7f800000u | (size & 3) << 21) : as_float(sign | size << 21) * 0x1p112f;
  }
}
// A row of n elements `step` bytes apart, in the format that products are made in. `room` is for n elements of T.
template <class T, class S>
OSM_INLINE void gather_row(const char* p, int64_t step, int64_t n, S* to, T* room) {
  if (step == (int64_t)sizeof(T)) return widen_row((const T*)p, n, to);
  for (int64_t i = 0; i < n; ++i) __builtin_memcpy(room + i, p + i * step, sizeof(T));
  widen_row(room, n, to);
}

// Where few queries meet many keys, these come straight from memory: a page ahead is asked for (2, 4, 8 and 16 KiB
// tried). Of rows that do not lie side by side this asks for what is not needed, which does no harm.
constexpr int64_t kAheadOfKeys = 4096;
OSM_INLINE void ask_for(const char* p, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i + kAheadOfKeys);
}

template <class T>
struct Heads {  // how the products of a format are made
  using V = typename Of<T>::V;
  using S = typename V::Scalar;
  // Degree of the exponential's polynomial: what the result's format can resolve.
  static constexpr int degree = sizeof(T) == 2 ? 4 : Of<T>::kDegree;
};

template <class T>
void pack_q(const char* p, int64_t step, int64_t d, void* to) {
  T room[kMostFeatures];
  gather_row<T>(p, step, d, (typename Heads<T>::S*)to, room);
}

template <class T, class V>
void pack_k(const AttentionKeys& keys, int64_t from, int64_t n, int64_t d, void* to) {
  using S = typename V::Scalar;
  constexpr int64_t panel = kPanel<V>, W = V::W;
  constexpr bool plain = __is_same(T, S);
  S lines[plain ? 1 : W][kMostFeatures], none[kMostFeatures];
  T room[kMostFeatures];
  bool cleared = false;
  for (int64_t j = 0; j < (n + panel - 1) / panel * panel; j += W) {
    const S* row[W];
    for (int64_t i = 0; i < W; ++i) {
      if (j + i >= n) {
        if (!cleared) __builtin_memset(none, 0, (size_t)d * sizeof(S)), cleared = true;
        row[i] = none;
        continue;
      }
      const char* p = keys.rows[from + j + i];
      row[i] = (const S*)p;
      if constexpr (!plain) {
        ask_for(p, d * (int64_t)sizeof(T));
        gather_row<T>(p, keys.step, d, lines[i], room), row[i] = lines[i];
      }
    }
    S* out = (S*)to + j / panel * panel * d + j % panel;
    int64_t c = 0;
    const bool near = !plain || keys.step == (int64_t)sizeof(S);
    for (; near && c + W <= d; c += W) {
      V block[W];
      load_turned(row, c, block);
      if constexpr (plain)
        _Pragma("GCC unroll 16") for (int64_t i = 0; i < W; ++i)
            __builtin_prefetch((const char*)(row[i] + c) + kAheadOfKeys);
      _Pragma("GCC unroll 16") for (int64_t i = 0; i < W; ++i) store(out + (c + i) * panel, block[i]);
    }
    for (; c < d; ++c)
      for (int64_t i = 0; i < W; ++i)
        out[c * panel + i] = near || row[i] == none ? row[i][c] : *(const S*)((const char*)row[i] + c * keys.step);
  }
}

template <class T, class V>
bool pack_v(const AttentionKeys& values, int64_t from, int64_t n, int64_t d, void* to) {
  using S = typename V::Scalar;
  constexpr int64_t panel = kPanel<V>;
  const int64_t panels = (d + panel - 1) / panel;
  // Rows that fill their panels are read where they lie.
  const bool plain = __is_same(T, S) && values.step == (int64_t)sizeof(S) && d % panel == 0;
  S line[kMostFeatures + panel], odd[V::W] = {};
  T room[kMostFeatures];
  S* out = (S*)to;
  V found = V::set(0);
  for (int64_t i = d; i < panels * panel; ++i) line[i] = 0;
  for (int64_t j = 0; j < n; ++j) {
    const char* p = values.rows[from + j];
    ask_for(p, d * (int64_t)sizeof(T));
    if (!plain) gather_row<T>(p, values.step, d, line, room);
    const S* row = plain ? (const S*)p : line;
    for (int64_t q = 0; q < panels; ++q) _Pragma("GCC unroll 4") for (int64_t i = 0; i < panel; i += V::W) {
        const V x = V::load(row + q * panel + i);
        store(out + (q * n + j) * panel + i, x);
        found = fma(x, V::set(0), found);
      }
  }
  store(odd, found);
  for (const S lane : odd)
    if (lane != 0) return false;
  return true;
}

// ---- results

template <class T, class S>
void attention_finish(const void* row, double by, int64_t n, char* to, int64_t step) {
  S line[kMostFeatures];
  T made[kMostFeatures];
  // Which sign a zero has that underflowed, and which NaN a NaN is, would tell how keys were come by.
  for (int64_t i = 0; i < n; ++i) {
    const S x = ((const S*)row)[i] * (S)by + (S)0;
    line[i] = x == x ? x : (S)__builtin_nan("");
  }
  narrow_row(line, n, made);
  if (step == (int64_t)sizeof(T)) {
    __builtin_memcpy(to, made, (size_t)n * sizeof(T));
    return;
  }
  for (int64_t i = 0; i < n; ++i) __builtin_memcpy(to + i * step, made + i, sizeof(T));
}

template <class V>
void attention_add(void* to, const void* from, int64_t n) {
  using S = typename V::Scalar;
  for (int64_t i = 0; i < n; ++i) ((S*)to)[i] += ((const S*)from)[i];
}

// What b has as 0 is left out, whatever a holds there.
template <class T>
double attention_dot(const char* a, int64_t a_step, const char* b, int64_t b_step, int64_t n) {
  using S = typename Heads<T>::S;
  S left[kMostFeatures], right[kMostFeatures];
  T room[kMostFeatures];
  gather_row<T>(a, a_step, n, left, room), gather_row<T>(b, b_step, n, right, room);
  double sum[4] = {};
  int64_t i = 0;
  for (; i + 4 <= n; i += 4)
    for (int q = 0; q < 4; ++q) sum[q] += right[i + q] == 0 ? 0 : (double)left[i + q] * (double)right[i + q];
  for (; i < n; ++i) sum[0] += right[i] == 0 ? 0 : (double)left[i] * (double)right[i];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

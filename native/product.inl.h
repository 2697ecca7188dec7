// Matrix products of any size: packing, and the tiles of a block. Included inside the namespace of an instruction set,
// after tile.inl.h.
//
// A is packed into strips of kTileRows rows, B into strips of kPanel columns, so that a tile reads both from front to
// back: a strip of B stays in the first-level cache while the strips of a block of A pass by from the second.

// One step of a strip: `lanes` elements side by side, widened.
template <int lanes, class S>
OSM_INLINE void put_step(const S* from, S* to) {
  __builtin_memcpy(to, from, lanes * sizeof(S));
}

// Lines whose elements are adjacent, W of them turned at a time.
template <class T, class V, int lanes>
OSM_INLINE void pack_turned(const char* p, int64_t line, int64_t here, int64_t steps, typename V::Scalar* out) {
  using S = typename V::Scalar;
  constexpr int W = V::W, groups = (lanes + W - 1) / W;
  constexpr bool plain = __is_same(T, S);
  S wide[plain ? 1 : W][kMostSteps], none[kMostSteps];
  bool cleared = false;
  for (int g = 0; g < groups; ++g) {
    const S* row[W];
    for (int i = 0; i < W; ++i) {
      const int lane = g * W + i;
      if (lane < lanes && lane >= here) {
        if (!cleared) __builtin_memset(none, 0, (size_t)steps * sizeof(S)), cleared = true;
        row[i] = none;
        continue;
      }
      // Lanes past those of a strip are never stored, or stored over: any line will do.
      const T* from = (const T*)(p + (lane < lanes ? lane : 0) * line);
      if constexpr (plain) {
        row[i] = from;
      } else {
        row[i] = wide[lane < lanes ? i : 0];
        if (lane < lanes) {
          for (int64_t at = 0; at < steps * (int64_t)sizeof(T); at += 64)
            __builtin_prefetch((const char*)from + W * line + at);
          widen_row(from, steps, wide[i]);
        }
      }
    }
    constexpr int last = lanes - (groups - 1) * W;
    S* to = out + g * W;
    int64_t c = 0;
    for (; c + W <= steps; c += W) {
      V block[W];
      load_turned(row, c, block);
      if constexpr (plain)
        _Pragma("GCC unroll 16") for (int i = 0; i < W; ++i) __builtin_prefetch((const char*)(row[i] + c) + W * line);
      _Pragma("GCC unroll 16") for (int i = 0; i < W; ++i) {
        // With one group alone what is stored past a step's lanes is stored over by the next step's.
        if (groups == 1 || last == W || g + 1 < groups) {
          store(to + (c + i) * lanes, block[i]);
        } else {
          S some[W];
          store(some, block[i]);
          put_step<last>(some, to + (c + i) * lanes);
        }
      }
    }
    for (; c < steps; ++c)
      for (int i = 0; i < W && g * W + i < lanes; ++i) to[c * lanes + i] = row[i][c];
  }
}

constexpr int64_t kAheadOfSteps = 8;

// Steps whose elements are adjacent: some strips at a time, so that a step reads a few cache lines in a row.
template <class T, class V, int lanes>
OSM_INLINE void pack_straight(const char* p, int64_t step, int64_t count, int64_t steps, typename V::Scalar* out) {
  using S = typename V::Scalar;
  constexpr int strips = 128 / lanes, most = strips * lanes;
  constexpr bool plain = __is_same(T, S);
  S wide[most];
  for (int64_t first = 0; first < count; first += most, out += most * steps) {
    const int64_t here = count - first < most ? count - first : most, whole = here / lanes;
    const char* from = p + first * (int64_t)sizeof(T);
    for (int64_t c = 0; c < steps; ++c, from += step) {
      for (int64_t at = 0; at < here * (int64_t)sizeof(T); at += 64)
        __builtin_prefetch(from + kAheadOfSteps * step + at);
      const S* row = wide;
      if constexpr (plain)
        row = (const S*)from;
      else
        widen_row((const T*)from, here, wide);
      S* to = out + c * lanes;
      for (int64_t s = 0; s < whole; ++s, to += lanes * steps) put_step<lanes>(row + s * lanes, to);
      if (whole * lanes == here) continue;
      for (int64_t i = 0; i < lanes; ++i) to[i] = whole * lanes + i < here ? row[whole * lanes + i] : 0;
    }
  }
}

template <class T, class V, int lanes>
void pack_lines(const char* p, int64_t line, int64_t step, int64_t count, int64_t steps, void* to) {
  using S = typename V::Scalar;
  S* out = (S*)to;
  if (line == (int64_t)sizeof(T) && step != (int64_t)sizeof(T))
    return pack_straight<T, V, lanes>(p, step, count, steps, out);
  for (; count > 0; count -= lanes, p += lanes * line, out += lanes * steps) {
    const int64_t here = count < lanes ? count : lanes;
    if (step == (int64_t)sizeof(T)) {
      pack_turned<T, V, lanes>(p, line, here, steps, out);
      continue;
    }
    T some[lanes] = {};
    for (int64_t c = 0; c < steps; ++c) {
      for (int64_t i = 0; i < here; ++i) __builtin_memcpy(some + i, p + i * line + c * step, sizeof(T));
      widen_row(some, lanes, out + c * lanes);
    }
  }
}

template <class V>
void product_block(const ProductBlock& b) {
  using S = typename V::Scalar;
  constexpr int64_t cols = kPanel<V>;
  for (int64_t j = 0; j < b.cols; j += cols) {
    const S* panel = (const S*)b.b + j * b.steps;
    for (int64_t i = 0; i < b.rows; i += kTileRows) {
      const S* strip = (const S*)b.a + i * b.steps;
      S* c = (S*)b.c + i * b.stride + j;
      const int64_t rows = b.rows - i < kTileRows ? b.rows - i : kTileRows,
                    wide = b.cols - j < cols ? b.cols - j : cols;
      // Asked for now, C is there when the sums are done.
      for (int64_t r = 0; r < rows; ++r) {
        __builtin_prefetch(c + r * b.stride, 1);
        __builtin_prefetch(c + r * b.stride + wide - 1, 1);
      }
      if (rows == kTileRows && wide == cols) {
        if (b.add)
          tile_product<V, kTileRows, kTileVectors, true, true>(strip, kTileRows, panel, b.steps, c, b.stride);
        else
          tile_product<V, kTileRows, kTileVectors, false, true>(strip, kTileRows, panel, b.steps, c, b.stride);
        continue;
      }
      S edge[kTileRows * cols];
      tile_product<V, kTileRows, kTileVectors, false, true>(strip, kTileRows, panel, b.steps, edge, cols);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t q = 0; q < wide; ++q) {
          S& to = c[r * b.stride + q];
          to = b.add ? to + edge[r * cols + q] : edge[r * cols + q];
        }
    }
  }
}

template <class T, class S>
void product_narrow(const void* from, int64_t n, char* to) {
  narrow_row((const S*)from, n, (T*)to);
}

inline ProductKernels float_product_kernels() {
  using V = F32;
  constexpr int rows = kTileRows, cols = kPanel<V>;
  return {rows,
          cols,
          4,
          {pack_lines<float, V, rows>, nullptr, pack_lines<f16, V, rows>, pack_lines<bf16, V, rows>},
          {pack_lines<float, V, cols>, nullptr, pack_lines<f16, V, cols>, pack_lines<bf16, V, cols>},
          product_block<V>,
          product_block<Fused32>,
          {product_narrow<float, float>, nullptr, product_narrow<f16, float>, product_narrow<bf16, float>}};
}
inline ProductKernels double_product_kernels() {
  using V = F64;
  constexpr int rows = kTileRows, cols = kPanel<V>;
  return {rows,
          cols,
          8,
          {nullptr, pack_lines<double, V, rows>, nullptr, nullptr},
          {nullptr, pack_lines<double, V, cols>, nullptr, nullptr},
          product_block<V>,
          product_block<V>,
          {nullptr, product_narrow<double, double>, nullptr, nullptr}};
}

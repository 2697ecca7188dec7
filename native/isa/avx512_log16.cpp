// bfloat16 softmax for precision="fast": the exponentials are carried as 16-bit logarithms, two to a word of 32 bits,
// so that dividing by the sum is a subtraction and 32 results take a dozen instructions (vbmi and bf16 on top of
// AVX-512).
//
// A logarithm counts 1/128 of an octave, with a bias that makes 2^0 the bit pattern of 1.0: y = 128*(log2(e) + 127).
// Its bfloat16 is y - u(y mod 128), where u (0 to 11) is by how much a line lies above 2^f: a table of 128 bytes. After
// a subtraction of k = 128*log2(sum) the same holds with the table of k's fraction; sixteen of them stand for all.
//
// Errors, relative: y is rounded once (0.27 %), a result once more (0.39 %), k to a sixteenth (0.02 %), and the sum is
// made of results (0.66 % where all its terms err alike; much less in rows of many values): 2^-6 at the worst.
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "../table.h"

namespace osm::isa_avx512 {

extern const Isa table;

namespace {

#define OSM_INLINE inline __attribute__((always_inline))
#define OSM_LAMBDA_INLINE __attribute__((always_inline))
// clang-format off: each builds on the ones before it
#include "../simd/avx512.h"

#include "../exp.inl.h"
#include "../elements.inl.h"
#include "../rows.inl.h"
// clang-format on

constexpr int kUnits = 128;                 // an octave
constexpr int kOne = 127 * kUnits;          // the logarithm of 1
constexpr int kFractions = 16;              // tables
constexpr double kPerUnit = 0x1.715476p+7;  // 128*log2(e), as float
constexpr float kLimit = 256;               // |pivot| below this: x*kPerUnit stays far from the end of the integers
constexpr int kWords = 32;                  // a register
constexpr int64_t kBlockCols = 2048;        // between folds of the sum
constexpr int64_t kShort = 256;

constexpr double exp2_of(double f) {  // 0 <= f < 2
  double term = 1, sum = 1;
  for (int k = 1; k < 30; ++k) sum += term *= f * 0.693147180559945309417 / k;
  return sum;
}

struct Tables {
  alignas(64) uint8_t u[kFractions][kUnits];
  constexpr Tables() : u{} {
    for (int fraction = 0; fraction < kFractions; ++fraction)
      for (int i = 0; i < kUnits; ++i) {
        const double at = i - (double)fraction / kFractions;
        // Below 1 (i = 0 alone) a step of the bits is half as wide.
        const double bits =
            at < 0 ? 2 * kUnits * (exp2_of(1 + at / kUnits) / 2 - 1) : kUnits * (exp2_of(at / kUnits) - 1);
        u[fraction][i] = (uint8_t)(i - bits + 0.5);
      }
  }
};
constexpr Tables kTables;

struct Curve {
  __m512i low, high;
  explicit OSM_INLINE Curve(int fraction)
      : low(_mm512_load_si512(kTables.u[fraction])), high(_mm512_load_si512(kTables.u[fraction] + 64)) {}
  OSM_INLINE __m512i at(__m512i y) const { return _mm512_maskz_permutex2var_epi8(0x5555555555555555u, low, y, high); }
};

// What a row is divided by: its sum as a logarithm, given in sixteenths of a unit.
struct Divisor {
  __m512i whole;
  Curve curve;
  explicit OSM_INLINE Divisor(int sixteenths)
      : whole(_mm512_set1_epi16((short)(sixteenths / kFractions))), curve(sixteenths % kFractions) {}
};

// Logarithms of eight sums, each from 1/2 on (a row's pivot is one of its elements), in sixteenths.
OSM_INLINE __m256i sixteenths_of(__m256 sums) {
  const __m256i bits = _mm256_castps_si256(sums);
  const __m256 exponent = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32(bits, 23), _mm256_set1_epi32(127)));
  const __m256 one = _mm256_set1_ps(1.0f);
  const __m256 mantissa = _mm256_castsi256_ps(
      _mm256_or_si256(_mm256_and_si256(bits, _mm256_set1_epi32(0x7fffff)), _mm256_castps_si256(one)));
  const __m256 t = _mm256_sub_ps(mantissa, one);
  // log2(1 + t) within 1.1e-4, a quarter of a sixteenth: scripts/fit_exp.py
  constexpr float c[] = {0.00010018903f, 1.4373022f, -0.6729342f, 0.3154676f, -0.08001088f};
  __m256 q = _mm256_set1_ps(c[4]);
  for (int k = 3; k >= 0; --k) q = _mm256_fmadd_ps(q, t, _mm256_set1_ps(c[k]));
  const __m256i all =
      _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_add_ps(exponent, q), _mm256_set1_ps(kUnits * kFractions)));
  return _mm256_max_epi32(all, _mm256_setzero_si256());
}
OSM_INLINE int sixteenths_of(float sum) { return _mm256_cvtsi256_si32(sixteenths_of(_mm256_set1_ps(sum))); }

// The sums of eight registers, a lane each.
OSM_INLINE __m256 sums_of(const __m512 (&s)[8]) {
  __m512 pairs[4], fours[2];
  for (int i = 0; i < 4; ++i)
    pairs[i] = _mm512_add_ps(_mm512_unpacklo_ps(s[2 * i], s[2 * i + 1]), _mm512_unpackhi_ps(s[2 * i], s[2 * i + 1]));
  for (int i = 0; i < 2; ++i) {
    const __m512d a = _mm512_castps_pd(pairs[2 * i]), b = _mm512_castps_pd(pairs[2 * i + 1]);
    fours[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  const __m512 halves =
      _mm512_add_ps(_mm512_shuffle_f32x4(fours[0], fours[1], 0x88), _mm512_shuffle_f32x4(fours[0], fours[1], 0xdd));
  const __m512 whole =
      _mm512_add_ps(_mm512_shuffle_f32x4(halves, halves, 0x88), _mm512_shuffle_f32x4(halves, halves, 0xdd));
  return _mm512_castps512_ps256(whole);
}

// The lanes of one register, added in the order of sums_of: a row's bits do not depend on its neighbours.
OSM_INLINE float sum_of(__m512 s) { return _mm256_cvtss_f32(sums_of({s, s, s, s, s, s, s, s})); }

// 32 elements as logarithms relative to the pivot inside `base`. Order inside each 128 bits: even places, odd places.
// Too small becomes 0, too large (and a positive NaN) 32767, which as an exponential is a NaN.
OSM_INLINE __m512i logarithms(__m512i x, __m512 base) {
  const __m512 scale = _mm512_set1_ps((float)kPerUnit);
  const __m512i magic = _mm512_castps_si512(_mm512_set1_ps(0x1.8p23f));
  const __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
  const __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000u)));
  const __m512i both =
      _mm512_packs_epi32(_mm512_sub_epi32(_mm512_castps_si512(_mm512_fmadd_ps(even, scale, base)), magic),
                         _mm512_sub_epi32(_mm512_castps_si512(_mm512_fmadd_ps(odd, scale, base)), magic));
  return _mm512_max_epi16(both, _mm512_setzero_si512());
}

// The results, in the order of the elements; what lies below the least normal number is 0.
OSM_INLINE __m512i results(__m512i y, const Divisor& divisor) {
  y = _mm512_subs_epu16(y, divisor.whole);
  const __mmask32 normal = _mm512_cmpge_epu16_mask(y, _mm512_set1_epi16(kUnits));
  y = _mm512_maskz_sub_epi16(normal, y, divisor.curve.at(y));
  const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
  return _mm512_shuffle_epi8(y, order);
}

OSM_INLINE __mmask32 first(int64_t n) { return (__mmask32)((1ull << n) - 1); }
// The last 0 < n < 32 elements of a row, -inf in the places past the end.
OSM_INLINE __m512i load_words(const bf16* x, int64_t n) {
  return _mm512_mask_loadu_epi16(_mm512_set1_epi16((short)0xff80), first(n), x);
}

float as_float(bf16 b) {
  const uint32_t bits = (uint32_t)b.bits << 16;
  float f;
  __builtin_memcpy(&f, &bits, 4);
  return f;
}
OSM_INLINE float whole_pivot(float m) { return __builtin_rintf(m * (float)kPerUnit); }
OSM_INLINE __m512 base_of(float whole) { return _mm512_set1_ps(0x1.8p23f + ((float)kOne - whole)); }

template <Store how>
OSM_INLINE void put(bf16* y, __m512i v) {
  if constexpr (how == Store::stream)
    _mm512_stream_si512((__m512i*)y, v);
  else
    _mm512_storeu_si512(y, v);
}

// Exponentials of one row relative to a pivot, their logarithms left in `keep`; side by side with them the results of
// another row, from what `keep` held. `most` shows the NaNs that count as too small.
struct Exponents {
  const bf16* x;
  __m512 base;
  uint16_t* keep;
  int divisor;  // of the row to write

  template <bool kSum, bool kKeep, bool kWrite, Store kStore>
  OSM_INLINE void words(int64_t i, int64_t n, bf16* to, const Curve& ones, const Divisor& by, __m512& sum,
                        __m512i& most) const {
    __m512i u;
    if constexpr (kSum) {
      u = n == kWords ? _mm512_loadu_si512(x + i) : load_words(x + i, n);
      prefetch((const char*)(x + i) + 2 * kAhead);
    }
    if constexpr (kWrite) {
      const __m512i y = results(_mm512_loadu_si512(keep + i), by);
      if (n == kWords)
        put<kStore>(to, y);
      else
        _mm512_mask_storeu_epi16(to, first(n), y);
    }
    if constexpr (kSum) {
      const __m512i l = logarithms(u, base), e = _mm512_sub_epi16(l, ones.at(l));
      most = _mm512_max_epu16(most, u);
      if constexpr (kKeep) _mm512_storeu_si512(keep + i, l);
      sum = _mm512_dpbf16_ps(sum, (__m512bh)e, (__m512bh)_mm512_set1_epi16(0x3f80));
    }
  }

  // Columns [start, stop), results to `to`; the sum in sixteen lanes.
  template <bool kSum, bool kKeep, bool kWrite, Store kStore>
  OSM_INLINE __m512 block(int64_t start, int64_t stop, bf16* to, const Curve& ones, const Divisor& by,
                          __m512i& most) const {
    __m512 sum[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
    int64_t i = start;
    for (; i + 4 * kWords <= stop; i += 4 * kWords)
      _Pragma("GCC unroll 4") for (int k = 0; k < 4; ++k) words<kSum, kKeep, kWrite, kStore>(
          i + k * kWords, kWords, to + (i - start) + k * kWords, ones, by, sum[k], most);
    for (; i + kWords <= stop; i += kWords)
      words<kSum, kKeep, kWrite, kStore>(i, kWords, to + (i - start), ones, by, sum[0], most);
    if (i < stop) words<kSum, kKeep, kWrite, Store::plain>(i, stop - i, to + (i - start), ones, by, sum[1], most);
    return _mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3]));
  }

  // A whole row; NaN where it holds one or its sum overflows.
  template <bool kSum, bool kKeep, bool kWrite, Store kStore>
  float run(int64_t cols, bf16* y, char* space) const {
    const Curve ones(0);
    const Divisor by(divisor);
    __m512i most = _mm512_setzero_si512();
    float total = 0;
    [[maybe_unused]] Lines<bf16> lines;
    if constexpr (kWrite && kStore == Store::lines) lines.begin(y, space);
    for (int64_t start = 0; start < cols; start += kBlockCols) {
      const int64_t stop = cols - start < kBlockCols ? cols : start + kBlockCols;
      bf16* to = kWrite && kStore == Store::lines ? lines.place() : y + start;
      total += sum_of(block<kSum, kKeep, kWrite, kStore>(start, stop, to, ones, by, most));
      if constexpr (kWrite && kStore == Store::lines) lines.advance((stop - start) * (int64_t)sizeof(bf16));
    }
    if constexpr (kWrite && kStore == Store::lines) lines.end();
    return kSum && holds_nan(most) ? __builtin_nanf("") : total;
  }
  static OSM_INLINE bool holds_nan(__m512i most) {
    return _mm512_cmpgt_epu16_mask(most, _mm512_set1_epi16((short)0xff80));
  }
};

constexpr float kMost = 0x1p100f;
OSM_INLINE bool usable_sum(float s) { return s >= 0.5f && s < kMost; }
OSM_INLINE bool usable_pivot(float m) { return m > -kLimit && m < kLimit; }

// The pivot of a row is its first element: any will do that is no more than some sixty octaves below the maximum. Rows
// where it is (or is -inf) take their maximum; rows that hold a NaN or an infinite maximum, or lie far from 0, are left
// to the exact kernels.
template <Store how>
struct Batch {
  const RowsJob& job;
  explicit OSM_INLINE Batch(const RowsJob& j) : job(j) {}

  OSM_INLINE const bf16* x(int64_t r) const { return (const bf16*)(job.x + r * job.x_stride); }
  OSM_INLINE bf16* y(int64_t r) const { return (bf16*)(job.y + r * job.y_stride); }
  OSM_INLINE Exponents exponents(int64_t r, float pivot, uint16_t* keep, int divisor) const {
    return {x(r), base_of(whole_pivot(pivot)), keep, divisor};
  }

  __attribute__((noinline)) void write(int64_t r, uint16_t* keep, int divisor, char* space) const {
    Exponents{nullptr, _mm512_setzero_ps(), keep, divisor}.run<false, true, true, how>(job.cols, y(r), space);
  }
  // The sum of row r, its logarithms left in `keep`, or NaN where the row is not for these kernels.
  __attribute__((noinline)) float alone(int64_t r, uint16_t* keep) const {
    float sum = __builtin_nanf("");
    for (int attempt = 0; attempt < 2 && !usable_sum(sum); ++attempt) {
      const float pivot = attempt ? (float)row_max(x(r), job.cols) : as_float(x(r)[0]);
      if (usable_pivot(pivot))
        sum = exponents(r, pivot, keep, 0).template run<true, true, false, Store::plain>(job.cols, nullptr, nullptr);
    }
    return sum;
  }
  __attribute__((noinline)) void exact(int64_t r, char* scratch) const {
    RowsJob one = job;
    one.rows = 1, one.fast = false, one.scratch = scratch;
    one.x = (const char*)x(r), one.y = (char*)y(r);
    table.kernels[(int)Dtype::bf16].rows(one);
  }

  // Exponentials of row r side by side with the results of row r - 1.
  void long_rows() const {
    uint16_t* keep = (uint16_t*)job.scratch;
    char* space = job.scratch + kept(job.cols) * (int64_t)sizeof(uint16_t);
    int divisor = 0;
    bool waits = false;  // row r - 1, in `keep`
    for (int64_t r = 0; r < job.rows; ++r) {
      const float pivot = as_float(x(r)[0]);
      float sum = __builtin_nanf("");
      if (waits && usable_pivot(pivot))
        sum = exponents(r, pivot, keep, divisor).template run<true, true, true, how>(job.cols, y(r - 1), space);
      else if (waits)
        write(r - 1, keep, divisor, space);
      if (!usable_sum(sum)) sum = alone(r, keep);
      waits = usable_sum(sum);
      if (waits)
        divisor = sixteenths_of(sum);
      else
        exact(r, job.scratch);
    }
    if (waits) write(job.rows - 1, keep, divisor, space);
  }

  // Eight rows at a time, side by side with the results of the eight before: from the last exponential of a row to its
  // divisor is a way of some hundred cycles, longer than such a row.
  void short_rows() const {
    constexpr int n = 8;
    const int64_t stride = kept(job.cols), whole = job.rows / n * n;
    uint16_t* keep = (uint16_t*)job.scratch;
    char* space = job.scratch + n * stride * (int64_t)sizeof(uint16_t);
    char* apart = space + lines_bytes<bf16>();
    alignas(32) int divisor[n] = {};
    unsigned waits = 0;  // bits of the rows in `keep`
    const Curve ones(0);
    for (int64_t r = 0; r < whole; r += n) {
      __m512 sums[n];
      __m512i most = _mm512_setzero_si512();
      for (int i = 0; i < n; ++i) {
        const Exponents e = exponents(r + i, as_float(x(r + i)[0]), keep + i * stride, 0);
        if (waits >> i & 1)
          sums[i] = e.template block<true, true, true, how>(0, job.cols, y(r - n + i), ones, Divisor(divisor[i]), most);
        else
          sums[i] = e.template block<true, true, false, how>(0, job.cols, nullptr, ones, Divisor(0), most);
      }
      const __m256 sum = sums_of(sums);
      waits = _mm256_cmp_ps_mask(sum, _mm256_set1_ps(0.5f), _CMP_GE_OQ) &
              _mm256_cmp_ps_mask(sum, _mm256_set1_ps(kMost), _CMP_LT_OQ);
      _mm256_store_si256((__m256i*)divisor, sixteenths_of(sum));
      if (waits == (1u << n) - 1 && !Exponents::holds_nan(most)) continue;
      for (int i = 0; i < n; ++i) {
        if (waits >> i & 1 && clean(x(r + i))) continue;
        const float s = alone(r + i, keep + i * stride);
        if (usable_sum(s))
          waits |= 1u << i, divisor[i] = sixteenths_of(s);
        else
          waits &= ~(1u << i), exact(r + i, apart);
      }
    }
    for (int i = 0; i < n; ++i)
      if (waits >> i & 1) write(whole - n + i, keep + i * stride, divisor[i], space);
    for (int64_t r = whole; r < job.rows; ++r) {
      const float s = alone(r, keep);
      if (usable_sum(s))
        write(r, keep, sixteenths_of(s), space);
      else
        exact(r, apart);
    }
  }
  // Neither a NaN nor a pivot that is none.
  bool clean(const bf16* x) const {
    bool good = usable_pivot(as_float(x[0]));
    for (int64_t c = 0; c < job.cols; ++c) good &= (x[c].bits & 0x7fff) <= 0x7f80;
    return good;
  }
  static int64_t kept(int64_t cols) { return (cols + 2 * kWords - 1) / kWords * kWords; }

  void run() const {
    if (job.cols <= kShort && how != Store::lines)
      short_rows();
    else
      long_rows();
  }
};

RowState segment_state(const char* px, int64_t n) {
  const bf16* x = (const bf16*)px;
  for (int attempt = 0; attempt < 2; ++attempt) {
    const float pivot = attempt ? (float)row_max(x, n) : as_float(x[0]);
    if (!usable_pivot(pivot)) continue;
    const float whole = whole_pivot(pivot);
    const float sum =
        Exponents{x, base_of(whole), nullptr, 0}.run<true, false, false, Store::plain>(n, nullptr, nullptr);
    if (usable_sum(sum)) return {(double)whole / kPerUnit, (double)sum};
  }
  return table.kernels[(int)Dtype::bf16].softmax_state(px, n);
}

template <Store kStore>
void map_words(const bf16* x, bf16* y, int64_t n, __m512 base, int sixteenths) {
  const Divisor divisor(sixteenths);
  int64_t i = 0;
  for (; i + kWords <= n; i += kWords) {
    prefetch((const char*)(x + i) + 2 * kAhead);
    put<kStore>(y + i, results(logarithms(_mm512_loadu_si512(x + i), base), divisor));
  }
  if (i < n)
    _mm512_mask_storeu_epi16(y + i, first(n - i), results(logarithms(load_words(x + i, n - i), base), divisor));
}

void write_state(const char* px, char* py, int64_t n, RowState st, bool stream) {
  const bf16* x = (const bf16*)px;
  bf16* y = (bf16*)py;
  const float whole = whole_pivot((float)st.m);
  const double sixteenths = kFractions * (st.m * kPerUnit - (double)whole + kUnits * __builtin_log2(st.s));
  const double most = 65535.0 * kFractions;
  const int divisor = (int)(sixteenths > 0 ? (sixteenths < most ? sixteenths + 0.5 : most) : 0);
  const __m512 base = base_of(whole);
  // The lines' places follow y: elements up to the first whole one, then lines.
  int64_t head = stream ? (int64_t)(-(uintptr_t)y & 63) / (int64_t)sizeof(bf16) : 0;
  if (head > n || (uintptr_t)y % sizeof(bf16)) head = n;
  map_words<Store::plain>(x, y, head, base, divisor);
  if (stream)
    map_words<Store::stream>(x + head, y + head, n - head, base, divisor);
  else
    map_words<Store::plain>(x + head, y + head, n - head, base, divisor);
}

}  // namespace

bool log16_usable() {
  return table.usable() && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bf16");
}

RowState log16_state(const char* x, int64_t n) { return segment_state(x, n); }

void log16_write(Op op, const char* x, char* y, int64_t n, RowState st, double log_s, bool stream) {
  const bool close = ordinary(st.m, st.s) && usable_pivot((float)st.m) && st.s > 0 && st.s < kInf;
  if (op == Op::softmax && close)
    write_state(x, y, n, st, stream);
  else
    table.kernels[(int)Dtype::bf16].write(op, x, y, n, st, log_s, stream);
}

void log16_rows(const RowsJob& job) {
  const bool mine = job.op == Op::softmax && !job.given && job.cols > 0;
  if (mine && job.algorithm == Algorithm::cached) {
    const Store how = store_kind<bf16>(job.stream, job.y, job.y_stride, job.cols);
    if (how == Store::stream)
      Batch<Store::stream>(job).run();
    else if (how == Store::lines)
      Batch<Store::lines>(job).run();
    else
      Batch<Store::plain>(job).run();
  } else if (mine && job.algorithm == Algorithm::online) {
    for (int64_t r = 0; r < job.rows; ++r) {
      const char* x = job.x + r * job.x_stride;
      RowState state{-kInf, 0.0};
      for (int64_t i = 0; i < job.cols; i += kSegment) {
        const int64_t here = job.cols - i < kSegment ? job.cols - i : kSegment;
        const RowState piece = segment_state(x + i * (int64_t)sizeof(bf16), here);
        state = i ? merged(state, piece) : piece;
      }
      log16_write(job.op, x, job.y + r * job.y_stride, job.cols, state, 0.0, job.stream);
    }
  } else {
    return table.kernels[(int)Dtype::bf16].rows(job);
  }
  if (job.stream) fence();
}

}  // namespace osm::isa_avx512

// Rows through native/exact.h, number by number: what tests/test_exact_builds.py compiles in many ways.
//
//   exact_builds FLUSH ROWS RESULTS
//
// FLUSH: 1 where subnormal numbers are to be flushed, of operands and of results. ROWS: blocks of three int64 (bytes of
// a number, rows, elements of a row) and the rows. RESULTS: of each block m, sums, log-sum-exps, probabilities and
// log-probabilities, one array after another.
#include "../native/exact.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

template <class S>
osm::ExactState<S> state_of(const S* x, int64_t n) {
  S m = -(S)__builtin_inf();
  bool nan = false;
  for (int64_t i = 0; i < n; ++i) {
    nan = nan || osm::is_nan(x[i]);
    m = x[i] > m ? x[i] : m;
  }
  osm::ExactState<S> st = osm::empty_state<S>();
  st.m = nan ? (S)__builtin_nan("") : osm::canonical(m);
  if (nan) return st;
  const bool plain = osm::is_plain(st.m);
  const int64_t b = osm::top_of(st.m);
  for (int64_t i = 0; i < n; ++i) osm::add_element(st, plain, b, x[i]);
  return st;
}

template <class S>
void block(int64_t rows, int64_t n, FILE* in, FILE* out) {
  constexpr int K = osm::Law<S>::slices;
  const size_t size = (size_t)(rows * n);
  S *x = (S*)malloc(size * sizeof(S)), *y = (S*)malloc(size * sizeof(S)), *log_y = (S*)malloc(size * sizeof(S));
  S *m = (S*)malloc(rows * sizeof(S)), *lse = (S*)malloc(rows * sizeof(S));
  int64_t* a = (int64_t*)malloc(rows * K * sizeof(int64_t));
  if (fread(x, sizeof(S), size, in) != size) exit(3);
  for (int64_t i = 0; i < rows; ++i) {
    const S* row = x + i * n;
    // In two parts, the latter first.
    const auto st = osm::merged(state_of(row + n / 3, n - n / 3), state_of(row, n / 3));
    m[i] = st.m, lse[i] = osm::lse_of(st);
    memcpy(a + i * K, st.a, sizeof st.a);
    const auto divisor = osm::divisor_of(st, true);
    for (int64_t k = 0; k < n; ++k) {
      y[i * n + k] = osm::value_of(divisor, row[k]);
      log_y[i * n + k] = osm::log_value_of(divisor, row[k]);
    }
  }
  fwrite(m, sizeof(S), rows, out), fwrite(a, sizeof(int64_t), rows * K, out), fwrite(lse, sizeof(S), rows, out);
  fwrite(y, sizeof(S), size, out), fwrite(log_y, sizeof(S), size, out);
  free(x), free(y), free(log_y), free(m), free(lse), free(a);
}

}  // namespace

int main(int, char** argument) {
  if (argument[1][0] == '1') {
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040);
#elif defined(__aarch64__)
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    __asm__ volatile("msr fpcr, %0" : : "r"(control | 1u << 24));
#else
    return 2;
#endif
  }
  FILE *in = fopen(argument[2], "rb"), *out = fopen(argument[3], "wb");
  if (!in || !out) return 3;
  for (int64_t head[3]; fread(head, sizeof head, 1, in) == 1;)
    head[0] == 4 ? block<float>(head[1], head[2], in, out) : block<double>(head[1], head[2], in, out);
  return fclose(out) ? 3 : 0;
}

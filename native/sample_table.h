// What an instruction set offers for drawing from a row, and the noise itself, which all share: a token's number of
// (seed, draw, row, token) alone, so that no cut of a row shows in what is drawn.
#pragma once
#include "same_log.h"
#include "table.h"

namespace osm {

constexpr int kSampleBlock = 32;      // tokens whose noise comes from one group of words; cut by token number
constexpr int64_t kSampleFold = 512;  // tokens summed in the working format before double takes over, likewise
constexpr int kSampleWords = kSampleBlock / 4;

// ---- the noise
//
// v = 1 - u, uniform in (0, 1), has two parts. Its 16 leading bits come from a word that four tokens share: 16 bits
// are enough to see that a token cannot win, and integer units make them beside the vector ones. What follows, another
// 64 bits, and 64 more where those begin with zeros, is made for the few tokens that might.

// Two factors of 64 bits, both halves of the product folded: the mixing of wyhash.
static inline uint64_t sample_fold(uint64_t a, uint64_t b) {
  __extension__ typedef unsigned __int128 Wide;
  const Wide p = (Wide)a * b;
  return (uint64_t)p ^ (uint64_t)(p >> 64);
}
constexpr uint64_t kSampleStep = 0x6a09e667f3bcc909ull;

// SplitMix64's finalizer.
static inline uint64_t sample_mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  return x ^ x >> 31;
}

// What tells a row's noise from all others.
struct SampleNoise {
  uint64_t start, twist, fine, finer;
  bool same;  // bits that no library's logarithm has a say in
};
static inline SampleNoise sample_noise(uint64_t seed, uint64_t draw, uint64_t row, bool same) {
  constexpr uint64_t golden = 0x9e3779b97f4a7c15ull;
  uint64_t h = sample_mix(seed + golden);
  h = sample_mix(h + sample_mix(draw + 2 * golden));
  h = sample_mix(h + sample_mix(row + 3 * golden));
  return {sample_mix(h + golden), sample_mix(h + 2 * golden), sample_mix(h + 3 * golden), sample_mix(h + 4 * golden),
          same};
}
static inline __attribute__((always_inline)) uint64_t sample_word(const SampleNoise& noise, uint64_t index) {
  const uint64_t at = noise.start + index * kSampleStep;
  return sample_fold(at, at ^ noise.twist);
}
// Which word and bits are token t's: in a register of 32-bit lanes, lane i of a block holds tokens i and i + 16.
static inline __attribute__((always_inline)) uint32_t sample_leading(const uint64_t* words, int t) {
  const int lane = t & 15;
  return (uint32_t)(words[lane >> 1] >> ((lane & 1) * 32 + (t >> 4) * 16)) & 0xffff;
}
static inline uint32_t sample_leading_of(const SampleNoise& noise, int64_t token) {
  const int t = (int)(token & (kSampleBlock - 1)), lane = t & 15;
  const uint64_t word = sample_word(noise, (uint64_t)(token / kSampleBlock) * kSampleWords + (uint64_t)(lane >> 1));
  return (uint32_t)(word >> ((lane & 1) * 32 + (t >> 4) * 16)) & 0xffff;
}

// -log(-log(u)) of a token: scalar code of the same operations in every translation unit, so the same bits.
static inline double sample_gumbel(const SampleNoise& noise, int64_t token, uint32_t leading) {
  const uint64_t more = sample_mix(noise.fine ^ sample_mix((uint64_t)token + noise.finer));
  double waited;  // -log(u)
  if (leading >= 0x8000) {
    // u itself, from its complement, where it is the lesser.
    const double u = ((double)(0xffff - leading) + ((double)~more + 0.5) * 0x1p-64) * 0x1p-16;
    waited = -(noise.same ? same_log(u) : __builtin_log(u));
  } else {
    double rest = ((double)more + 0.5) * 0x1p-64;
    if (leading == 0 && more < uint64_t{1} << 53) {
      const uint64_t last = sample_mix(noise.finer ^ sample_mix((uint64_t)token + noise.fine));
      rest = ((double)more + ((double)last + 0.5) * 0x1p-64) * 0x1p-64;
    }
    const double v = ((double)leading + rest) * 0x1p-16;
    waited = -(noise.same ? same_log1p(-v) : __builtin_log1p(-v));
  }
  return -(noise.same ? same_log(waited) : __builtin_log(waited));
}

// ---- what an instruction set offers

// The best of a piece: the token of the greatest key, logit / temperature + gumbel; the lower token where keys are
// equal. token -1: nothing that could be drawn.
struct SampleBest {
  double key, rest;  // their sum is exact: beside a great logit the noise would be lost to rounding
  double logit;      // over the temperature
  int64_t token;
};
constexpr SampleBest kNoBest{-__builtin_inf(), 0, -__builtin_inf(), -1};
static inline SampleBest sample_key(double logit, double noise, int64_t token) {
  const double key = logit + noise, back = key - logit;
  return {key, (logit - (key - back)) + (noise - back), logit, token};
}
static inline bool sample_beats(const SampleBest& a, const SampleBest& b) {
  return a.key > b.key || (a.key == b.key && a.rest > b.rest);
}
// pivot and sum: of exp((x - pivot) / temperature), where m of `state` is pivot / temperature. A NaN or +inf makes the
// state the law's.
struct SamplePiece {
  SampleBest best;
  double pivot;
  RowState state;
};
// n adjacent elements, whose first is token `first`.
struct SampleJob {
  const char* x;
  int64_t n, first;
  double temperature;
  SampleNoise noise;
  bool true_maximum;  // the state's m has to be it
  bool draws;         // or the state alone
};

struct SampleKernels {
  void (*piece)(const SampleJob&, SamplePiece*);
  // The sum alone, bit for bit as piece() makes it of whole kSampleFold groups, with one element (or -1) left out.
  double (*sum)(const SampleJob&, double pivot, int64_t without);
  double (*maximum)(const char* x, int64_t n);              // no word on NaN
  int64_t (*find)(const char* x, int64_t n, double value);  // the first equal element, or -1
  // The elements above `cut` and NaN, in their order: values / temperature and their places. Returns how many.
  int64_t (*above)(const char* x, int64_t n, double cut, double temperature, double* values, int64_t* places);
};

// By name of the instruction set and Dtype.
const SampleKernels& sample_kernels_of(const Isa& isa, Dtype dtype);

}  // namespace osm

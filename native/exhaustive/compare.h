// Loops over a stretch of pairs (a, b), a fixed and the codes of b consecutive, that single out the pairs that need a
// second look: those that are not certainly the correctly rounded result. Written so that compilers vectorise them, and
// built for AVX2 beside the plain instruction set where the loader can choose.
#pragma once
#include <cstdint>

#include "format16.h"

namespace exhaustive {

constexpr int kTile = 4096;  // pairs at once; the buffers stay in the second-level cache

// A relative error that no product, quotient or sum of a few tabled doubles reaches: each is at most 2^-53 off, and no
// condition below has more than six of them.
constexpr double kSlack = 0x1p-50;

// One format's tables as the loops read them: n codes from `first` on, and the same of a.
struct Stretch {
  const Format* format;
  int a, first, n;
};

// Codes of softmax results side by side, y[2i] and y[2i + 1], taken apart.
void take_apart(const uint16_t* y, uint16_t* ya, uint16_t* yb, int n);

// log-sum-exps in float rounded to the format: to nearest, ties to even; NaN to some NaN.
void round_to(const Format& format, const float* lse, uint16_t* codes, int n);

// flag[i] is set where it cannot be ruled out that a result is not the correctly rounded one, for |a| <= kMiddle and
// |b| <= kTabled.
void flag_softmax(const Stretch& s, const uint16_t* ya, const uint16_t* yb, int64_t* flag);
void flag_lse(const Stretch& s, const uint16_t* codes, int64_t* flag);
// States: flag where m is not the maximum, or s is more than `most` away, relatively; error[i] is how far.
void flag_states(const Stretch& s, const double* m, const double* sum, double most, double* error, int64_t* flag);

// The same where the greater of the two is all there is.
void flag_lone_softmax(const Stretch& s, const uint16_t* ya, const uint16_t* yb, int64_t* flag);
void flag_lone_lse(const Stretch& s, const uint16_t* codes, int64_t* flag);
void flag_lone_states(const Stretch& s, const double* m, const double* sum, int64_t* flag);

}  // namespace exhaustive

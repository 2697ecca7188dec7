// The four formats as the tests see them: a value in double, to and from memory. Written for clarity, not for speed.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "../table.h"

namespace tests {

using osm::Dtype;

inline const char* short_name(Dtype d) {
  constexpr const char* names[] = {"f32", "f64", "f16", "bf16"};
  return names[(int)d];
}

// Half the relative distance of neighbours: what one rounding may cost.
inline double unit(Dtype d) {
  return std::ldexp(1.0, d == Dtype::f64 ? -53 : d == Dtype::f32 ? -24 : d == Dtype::f16 ? -11 : -8);
}
inline double least_normal(Dtype d) { return std::ldexp(1.0, d == Dtype::f64 ? -1022 : d == Dtype::f16 ? -14 : -126); }

inline double from_half(uint16_t h) {
  const int exponent = h >> 10 & 31, fraction = h & 1023;
  const double sign = h >> 15 ? -1.0 : 1.0;
  if (exponent == 31) return fraction ? NAN : sign * HUGE_VAL;
  return sign * (exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24));
}

inline uint16_t to_half(double v) {
  const uint16_t sign = std::signbit(v) ? 0x8000 : 0;
  const double a = std::fabs(v);
  if (std::isnan(v)) return 0x7e00;
  if (a >= 65520.0) return sign | 0x7c00;
  if (a == 0) return sign;
  int e = 0;
  std::frexp(a, &e);
  const int scale = e < -13 ? -24 : e - 11;                      // the spacing of halves around a
  const int steps = (int)std::nearbyint(std::ldexp(a, -scale));  // ties to even
  return sign | (uint16_t)(scale == -24 ? steps : ((e + 14) << 10) + (steps - 1024));
}

inline double load(Dtype d, const char* p) {
  if (d == Dtype::f64) {
    double v;
    std::memcpy(&v, p, 8);
    return v;
  }
  uint32_t bits = 0;
  std::memcpy(&bits, p, d == Dtype::f32 ? 4 : 2);
  if (d == Dtype::f16) return from_half((uint16_t)bits);
  if (d == Dtype::bf16) bits <<= 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

inline void store(Dtype d, char* p, double v) {
  if (d == Dtype::f64) {
    std::memcpy(p, &v, 8);
    return;
  }
  if (d == Dtype::f16) {
    const uint16_t h = to_half(v);
    std::memcpy(p, &h, 2);
    return;
  }
  const float f = (float)v;
  if (d == Dtype::f32) {
    std::memcpy(p, &f, 4);
    return;
  }
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  if (std::isnan(f))
    bits = 0x7fc00000;
  else
    bits += 0x7fff + (bits >> 16 & 1);
  const uint16_t top = (uint16_t)(bits >> 16);
  std::memcpy(p, &top, 2);
}

}  // namespace tests

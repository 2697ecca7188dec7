#include "format16.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "exact.h"

namespace exhaustive {
namespace {

// A finite code is sign and place on a scale on which neighbours are one apart: place 2^fraction is the least normal.
double at_place(const Format& f, double place) {
  const double whole = std::floor(place);
  const int binade = std::max(0, (int)whole >> f.fraction);  // 0: subnormal, spaced as the first normal binade
  const int least = f.dtype == osm::Dtype::f16 ? -24 : -133;
  const double steps = place - (binade ? (double)((binade - 1) << f.fraction) : 0.0);
  return std::ldexp(steps, least + (binade ? binade - 1 : 0));
}

double value_of(const Format& f, int code) {
  if (f.is_nan(code)) return std::numeric_limits<double>::quiet_NaN();
  const double size = (code & 0x7fff) == f.infinity ? HUGE_VAL : at_place(f, code & 0x7fff);
  return code & kNegative ? -size : size;
}

double clamped(double v) { return std::min(std::max(v, -kTabled), kTabled); }

Format made(Format f) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  f.value.resize(kCodes), f.e.assign(kCodes, nan), f.e1.assign(kCodes, nan);
  for (auto* table : {&f.below, &f.above, &f.below1, &f.above1}) table->assign(kCodes, nan);
  for (int code = 0; code < kCodes; ++code) f.value[(size_t)code] = value_of(f, code);
  f.tabled = (int)(std::upper_bound(f.value.begin(), f.value.begin() + f.infinity, kTabled) - f.value.begin());
  for (int code = 0; code < kCodes; ++code) {
    if (f.is_nan(code)) continue;
    const size_t i = (size_t)code;
    f.e[i] = to_double(exp_of({clamped(f.value[i]), 0})), f.e1[i] = to_double(expm1_of({clamped(f.value[i]), 0}));
    if ((code & 0x7fff) > f.tabled) continue;
    const DD low{f.midpoint_below(code), 0}, high{f.midpoint_above(code), 0};
    f.below[i] = to_double(exp_of(low)), f.above[i] = to_double(exp_of(high));
    f.below1[i] = to_double(expm1_of(low)), f.above1[i] = to_double(expm1_of(high));
  }
  return f;
}

}  // namespace

const Format& Format::f16() {
  static const Format format =
      made({"f16", osm::Dtype::f16, 10, 13, 0x1p112f, 0x7c00, 0x3c00, 0, {}, {}, {}, {}, {}, {}, {}});
  return format;
}
const Format& Format::bf16() {
  static const Format format =
      made({"bf16", osm::Dtype::bf16, 7, 16, 1.0f, 0x7f80, 0x3f80, 0, {}, {}, {}, {}, {}, {}, {}});
  return format;
}

double Format::midpoint_above(int code) const {
  if (code & kNegative) {
    const int place = code & 0x7fff;
    return place ? -at_place(*this, place - 0.5) : at_place(*this, 0.5);
  }
  return at_place(*this, code + 0.5);
}

double Format::spacing(int code, bool exact_is_above) const {
  return 2 * std::fabs((exact_is_above ? midpoint_above(code) : midpoint_below(code)) - value[(size_t)code]);
}

uint16_t Format::rounded(double v) const {
  if (std::isnan(v)) return (uint16_t)(infinity + 1);
  const int sign = std::signbit(v) ? kNegative : 0;
  const double size = std::fabs(v);
  if (size > at_place(*this, infinity - 0.5) || size == at_place(*this, infinity - 0.5))
    return (uint16_t)(sign | infinity);  // the tie at the end is even above
  // The greatest place whose value is no more than `size`, then the nearer of it and the next.
  const int place = (int)(std::upper_bound(value.begin(), value.begin() + infinity, size) - value.begin()) - 1;
  const double middle = at_place(*this, place + 0.5);
  const bool up = size > middle || (size == middle && place % 2 == 1);
  return (uint16_t)(sign | (place + up));
}

}  // namespace exhaustive

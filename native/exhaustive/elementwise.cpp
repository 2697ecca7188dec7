// exp of every value of the 16-bit formats.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "pairs.h"

namespace exhaustive {
namespace {

std::string id(const char* name, const Format& format, const Request& request) {
  return std::string(name) + "." + format.name + "." + request.isa->name;
}

double limited(double v) { return std::min(std::max(v, -kTabled), kTabled); }

// Error of a float result in units in the last place of the exact value, its rounding to infinity at the end included.
double float_error(double got, double exact) {
  if (exact > (double)std::numeric_limits<float>::max() && std::isinf(got)) return 0.0;
  int exponent = 0;
  std::frexp(exact, &exponent);
  return std::fabs(got - exact) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

}  // namespace

Tally check_exp(const Format& format, const Request& request, double* float_ulps) {
  Judge judge(format, id("exp", format, request));
  std::vector<float> x(kCodes), y(kCodes);
  for (size_t code = 0; code < kCodes; ++code) x[code] = (float)format.value[code];
  // A NaN of the format keeps its sign and payload on the way.
  for (int code = 0; code < kCodes; ++code)
    if (format.is_nan(code)) {
      const uint32_t payload = (uint32_t)(code & (format.infinity ^ 0x7fff)) << (23 - format.fraction);
      const uint32_t bits = (uint32_t)(code & kNegative) << 16 | 0x7f800000u | payload;
      std::memcpy(&x[(size_t)code], &bits, 4);
    }
  request.isa->exp_f32(x.data(), y.data(), kCodes);
  if (request.inject == Inject::value) y[(size_t)format.one] *= 1.01f;
  if (request.inject == Inject::special) y[(size_t)format.infinity + 1] = 1.0f;
  for (int code = 0; code < kCodes; ++code) {
    const float got = y[(size_t)code];
    ++judge.tally.pairs, ++judge.tally.results;
    if (format.is_nan(code))
      judge.expect(std::isnan(got), code, -1, "exp", got, NAN);
    else if (format.is_special(code))
      judge.expect(got == (code < kNegative ? HUGE_VALF : 0.0f), code, -1, "exp", got, code < kNegative ? HUGE_VAL : 0);
    if (format.is_special(code)) continue;
    const double exact = std::exp(limited(format.value[(size_t)code])), off = float_error(got, exact);
    *float_ulps = std::max(*float_ulps, off);
    if (!(off <= kExpBound)) judge.violation(code, -1, "float32 exp", got, exact, off, "float32 ulp");
    judge.exponential(code, format.rounded(got));
  }
  return judge.tally;
}

Tally check_exps(const Format& format, const Request& request) {
  Judge judge(format, id("exps", format, request));
  std::vector<uint16_t> x(kCodes);
  std::vector<double> e(kCodes);
  for (int code = 0; code < kCodes; ++code) x[(size_t)code] = (uint16_t)code;
  osm::kernels_of(*request.isa, format.dtype, false).exps((const char*)x.data(), e.data(), kCodes, 0.0);
  if (request.inject == Inject::value) e[(size_t)(kNegative | format.one)] *= 1.01;
  if (request.inject == Inject::special) e[(size_t)format.infinity + 1] = 1.0;
  for (int code = 0; code < kCodes; ++code) {
    const double got = e[(size_t)code], v = format.value[(size_t)code];
    if (v > 0) continue;  // above the maximum: not a question that is asked
    ++judge.tally.pairs, ++judge.tally.results;
    if (format.is_nan(code))
      judge.expect(std::isnan(got), code, -1, "exps", got, NAN);
    else if (v == -HUGE_VAL)
      judge.expect(format.rounded(got) == 0, code, -1, "exps", got, 0);
    else
      judge.exponential(code, format.rounded(got));
  }
  return judge.tally;
}

}  // namespace exhaustive

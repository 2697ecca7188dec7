// The law in C++: identity, push, merge, value. Every driver loop that joins pieces calls merge from here.
#pragma once
#include <cmath>
#include <limits>

namespace osm {

struct State {
  double m = -std::numeric_limits<double>::infinity();
  double s = 0.0;
};

// The one guard: inside an exponent an infinite maximum counts as 0, so the empty state merges with itself to itself.
inline double guard(double m) { return std::isinf(m) ? 0.0 : m; }

// NaN taints; a zero maximum is +0 whichever operand brought it, so that the order of merging never shows.
inline double rising_max(double a, double b) {
  return std::isnan(a) || std::isnan(b) ? std::nan("") : (a > b ? a : b) + 0.0;
}

inline State merge(State a, State b) {
  const double m = rising_max(a.m, b.m), p = guard(m);
  if (std::isnan(m) || std::isnan(a.s) || std::isnan(b.s)) return {std::nan(""), std::nan("")};
  if (m == std::numeric_limits<double>::infinity())  // s counts the infinite entries
    return {m, (a.m == m ? a.s : 0.0) + (b.m == m ? b.s : 0.0)};
  return {m, a.s * std::exp(a.m - p) + b.s * std::exp(b.m - p)};
}

inline State push(State a, double x) {
  if (x == -std::numeric_limits<double>::infinity()) return a;
  return merge(a, {x, std::isnan(x) ? x : 1.0});
}

// The same state with its greatest term taken out, s = 1 + t: log1p(t) keeps what a sum near 1 has rounded away. Scans
// carry this. Of nothing: (-inf, 0); t says nothing where m is +inf or NaN.
struct Tail {
  double m = -std::numeric_limits<double>::infinity();
  double t = 0.0;
};

inline Tail merge_tails(Tail a, Tail b) {
  const double m = rising_max(a.m, b.m);
  if (std::isnan(m) || std::isinf(m)) return {m, 0.0};
  const Tail &high = a.m == m ? a : b, &low = a.m == m ? b : a;
  return {m, high.t + (1.0 + low.t) * std::exp(low.m - m)};
}

}  // namespace osm

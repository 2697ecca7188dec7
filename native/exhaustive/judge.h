// The second look: one result at a time, decided in double where that is certain and in double-double where not.
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "exact.h"
#include "format16.h"

namespace exhaustive {

// A result of 16 bits lies within this many units in the last place of the exact value (ARCHITECTURE.md: one rounding
// of a float that is 3e-6 off at the most).
constexpr double kBound = 0.512;
constexpr double kInfinite = std::numeric_limits<double>::infinity();

// What one check found out.
struct Tally {
  int64_t pairs = 0, results = 0;  // inputs for functions of one argument
  int64_t not_correctly_rounded = 0, violations = 0;
  int64_t second_looks = 0, in_double_double = 0, undecided = 0;
  double worst = 0;  // of the results looked at twice
  int worst_a = 0, worst_b = 0;
  std::vector<std::string> lines;  // the first violations

  void add(const Tally& other);
};

class Judge {
 public:
  Judge(const Format& format, const std::string& id) : format_(format), id_(id) {}
  Tally tally;

  // The softmax of a and b, of which the result in the place of a (or of b: swap the two).
  void softmax(int a, int b, int code, bool swapped);
  void lse(int a, int b, int code);
  // exp(x), by the code of a result.
  void exponential(int x, int code);
  // States whose error is `error`, relative to the exact sum; `most` is allowed.
  void state(int a, int b, double m, double s, double error, double most);
  double state_error(int a, int b, double s) const;

  // Pairs with a NaN or an infinity: exact, by the law.
  void special_softmax(int a, int b, int ya, int yb);
  void special_lse(int a, int b, float lse, int code);
  void special_state(int a, int b, double m, double s);
  void violation(int a, int b, const char* what, double got, double exact, double error, const char* unit);
  void expect(bool good, int a, int b, const char* what, double got, double exact);

 private:
  struct Near {
    double value, slack;
  };
  template <class Exact>
  void place(int a, int b, int code, const char* what, Near near, const Exact& exact);
  double ulps(int code, DD exact) const;
  void worst(double error, int a, int b);
  double value(int code) const { return format_.value[(size_t)code]; }
  bool tabled(int a, int b) const;

  const Format& format_;
  std::string id_;
};

}  // namespace exhaustive

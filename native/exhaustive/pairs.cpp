#include "pairs.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "../state.h"
#include "compare.h"

namespace exhaustive {
namespace {

using osm::Algorithm;

// A state's sum is 1 + exp(-d), d = |a - b|. In float: d is rounded (u*d) and reduced without the low word of log2(e)
// (0.22u*d), exp itself is within 1.01 ulp (2.02u), the addition within u. Weighted by the term's share of the sum,
// 1/(1 + exp(d)), and with the addition the errors are at most 2.1u of the sum (the most is at d = 0).
constexpr double kFloat = 0x1p-24, kFloatBound = 2.1;
// The law in double: difference u*d, exp 2u, addition u: at most 3u; and 5u for the tables it is held to.
constexpr double kDouble = 0x1p-53, kDoubleBound = 8;

// Elements of a column between updates of its running state (kColsBlock in cols.inl.h): a in the first, b in the
// second block, nothing between.
constexpr int kBlockElements = 8;

// A pair whose difference is greater is decided by the greater of the two alone, whatever is looked at.
constexpr double kAlone = 200;

enum class How { tabled, singly, lone, special };
struct Segment {  // codes of b that are treated alike
  int first, end;
  How how;
};

std::vector<Segment> segments(const Format& f, int a) {
  if (f.is_special(a)) return {{0, kCodes, How::special}};
  std::vector<Segment> all;
  const double size = std::fabs(f.value[(size_t)a]);
  const auto end = f.value.begin() + f.infinity;
  const auto first_from = [&](double v) { return (int)(std::lower_bound(f.value.begin(), end, v) - f.value.begin()); };
  const auto first_past = [&](double v) { return (int)(std::upper_bound(f.value.begin(), end, v) - f.value.begin()); };
  for (int sign : {0, kNegative}) {
    if (size <= kMiddle) {
      all.push_back({sign, sign + f.tabled, How::tabled}),
          all.push_back({sign + f.tabled, sign + f.infinity, How::lone});
    } else if ((a & kNegative) == sign) {
      const int low = sign + first_from(size - kAlone), high = sign + first_past(size + kAlone);
      all.push_back({sign, low, How::lone}), all.push_back({low, high, How::singly});
      all.push_back({high, sign + f.infinity, How::lone});
    } else {
      all.push_back({sign, sign + f.infinity, How::lone});
    }
    all.push_back({sign + f.infinity, sign + kNegative, How::special});
  }
  return all;
}

osm::State state_of(double x) { return osm::push({}, x); }

// One thread's walk.
class Walk {
 public:
  Walk(const Check& check, const Format& format, const Request& request)
      : check_(check),
        f_(format),
        request_(request),
        judge_(format, std::string(check.name) + "." + format.name + "." + request.isa->name) {
    const int length = check.layout == Layout::blocks ? kBlockElements + 1 : 2;
    const uint16_t nothing = (uint16_t)(kNegative | f_.infinity);
    x_.assign((size_t)length * kTile, nothing), y_.resize(2 * kTile), codes_.resize(2 * kTile);
    lse_.resize(kTile), m_.resize(kTile), s_.resize(kTile), error_.resize(kTile), flag_.resize(kTile);
    if (check.kind == Kind::law)
      for (int b = 0; b < kCodes; ++b) states_.push_back(state_of(f_.value[(size_t)b]));
    prepare(length);
  }
  const Tally& tally() const { return judge_.tally; }

  void all_of(int a) {
    const std::vector<Segment> parts = segments(f_, a);
    for (int first = 0; first < kCodes; first += kTile) {
      run(a, first);
      if (request_.inject != Inject::nothing && a == 0) spoil(first);
      for (const Segment& part : parts) {
        const int from = std::max(part.first, first), to = std::min(part.end, first + kTile);
        if (from < to) look({&f_, a, from, to - from}, part.how, from - first);
      }
      judge_.tally.pairs += kTile;
      judge_.tally.results += check_.kind == Kind::softmax ? 2 * kTile : kTile;
    }
  }

 private:
  void prepare(int length) {
    problem_.isa = request_.isa, problem_.dtype = f_.dtype, problem_.algorithm = check_.algorithm;
    problem_.ndim = 2;
    const bool rows = check_.layout == Layout::rows;
    const int64_t element = 2, line = rows ? 2 * element : kTile * element;
    problem_.shape[0] = rows ? kTile : length, problem_.shape[1] = rows ? 2 : kTile;
    problem_.reduced = rows ? 2 : 1;
    problem_.x_strides[0] = problem_.y_strides[0] = line;
    problem_.x_strides[1] = problem_.y_strides[1] = element;
    problem_.x = (const char*)x_.data(), problem_.y = (char*)y_.data();
    if (check_.kind == Kind::softmax) problem_.op = osm::Op::softmax;
    // Results as the Python module asks for them: log-sum-exps in float; states in double, for further merging.
    if (check_.kind == Kind::lse) problem_.op = osm::Op::lse, problem_.single = true, problem_.first = lse_.data();
    if (check_.kind == Kind::state) problem_.op = osm::Op::state;
    if (check_.kind == Kind::state) problem_.first = m_.data(), problem_.second = s_.data();
  }

  // The kernels on (a, b) for the codes b from `first` on.
  void run(int a, int first) {
    if (check_.kind == Kind::law) {
      const osm::State of_a = states_[(size_t)a];
      for (int i = 0; i < kTile; ++i) {
        const osm::State both = osm::merge(of_a, states_[(size_t)(first + i)]);
        m_[(size_t)i] = both.m, s_[(size_t)i] = both.s;
        const bool minus_0 = both.m == 0 && std::signbit(both.m);  // which operand brought the zero must not show
        if (minus_0) judge_.expect(false, a, first + i, "sign of the maximum", -1, 1);
      }
      return;
    }
    uint16_t* x = x_.data();
    if (check_.layout == Layout::rows) {
      for (int i = 0; i < kTile; ++i) x[2 * i] = (uint16_t)a, x[2 * i + 1] = (uint16_t)(first + i);
    } else {
      uint16_t* last = x + (x_.size() - kTile);
      for (int i = 0; i < kTile; ++i) x[i] = (uint16_t)a, last[i] = (uint16_t)(first + i);
    }
    osm::run(problem_);
    if (check_.kind == Kind::lse) round_to(f_, lse_.data(), codes_.data(), kTile);
    if (check_.kind != Kind::softmax) return;
    if (check_.layout == Layout::rows)
      take_apart(y_.data(), codes_.data(), codes_.data() + kTile, kTile);
    else
      std::copy(y_.begin(), y_.end(), codes_.begin());
  }

  // A wrong result of (0, 1) or of (0, NaN), which has to be found.
  void spoil(int first) {
    const bool special = request_.inject == Inject::special;
    const int b = special ? f_.infinity + 1 : f_.one;
    if (b < first || b >= first + kTile) return;
    const size_t i = (size_t)(b - first);
    codes_[i] = special ? 0 : (uint16_t)(codes_[i] ^ 2);
    lse_[i] = special ? 0.0f : lse_[i];
    s_[i] = special ? 1.0 : s_[i] * 1.001;
  }

  void look(const Stretch& s, How how, int at) {
    const uint16_t *ya = codes_.data() + at, *yb = ya + kTile;
    const double *m = m_.data() + at, *sum = s_.data() + at;
    int64_t* flag = flag_.data();
    const bool lone = how == How::lone;
    if (how == How::special || how == How::singly) {
      for (int i = 0; i < s.n; ++i) single(s.a, s.first + i, at + i, how == How::special);
      return;
    }
    if (check_.kind == Kind::softmax) {
      (lone ? flag_lone_softmax : flag_softmax)(s, ya, yb, flag);
    } else if (check_.kind == Kind::lse) {
      (lone ? flag_lone_lse : flag_lse)(s, ya, flag);
    } else if (lone) {
      flag_lone_states(s, m, sum, flag);
    } else {
      const double most = std::min(judge_.tally.worst, check_.bound * check_.unit);
      flag_states(s, m, sum, most, error_.data(), flag);
    }
    for (int i = 0; i < s.n; ++i)
      if (flag[i]) flagged(s, how, i, at);
  }

  void flagged(const Stretch& s, How how, int i, int at) {
    const int b = s.first + i;
    const size_t place = (size_t)(at + i);
    if (check_.kind != Kind::state && check_.kind != Kind::law) return single(s.a, b, at + i, false);
    // A lone sum is 1 to the last bit.
    if (how == How::lone) judge_.expect(s_[place] == 1.0, s.a, b, "sum", s_[place], 1.0);
    const double error = how == How::tabled ? error_[(size_t)i] : 0.0;
    judge_.state(s.a, b, m_[place], s_[place], error, check_.bound * check_.unit);
  }

  void single(int a, int b, int at, bool special) {
    const size_t i = (size_t)at;
    if (check_.kind == Kind::softmax) {
      const int ya = codes_[i], yb = codes_[i + kTile];
      if (special) return judge_.special_softmax(a, b, ya, yb);
      judge_.softmax(a, b, ya, false), judge_.softmax(b, a, yb, true);
    } else if (check_.kind == Kind::lse) {
      special ? judge_.special_lse(a, b, lse_[i], codes_[i]) : judge_.lse(a, b, codes_[i]);
    } else if (special) {
      judge_.special_state(a, b, m_[i], s_[i]);
    } else {
      judge_.state(a, b, m_[i], s_[i], judge_.state_error(a, b, s_[i]), check_.bound * check_.unit);
    }
  }

  const Check& check_;
  const Format& f_;
  const Request& request_;
  Judge judge_;
  osm::Problem problem_;
  std::vector<uint16_t> x_, y_, codes_;
  std::vector<float> lse_;
  std::vector<double> m_, s_, error_;
  std::vector<int64_t> flag_;
  std::vector<osm::State> states_;
};

Check in_ulps(const char* name, Kind kind, Layout layout, Algorithm algorithm) {
  return {name, kind, layout, (int)algorithm, 1.0, kBound, "ulp"};
}

}  // namespace

const std::vector<Check>& checks() {
  constexpr int cached = (int)Algorithm::cached, online = (int)Algorithm::online;
  static const std::vector<Check> all = {
      {"merge.law", Kind::law, Layout::none, cached, kDouble, kDoubleBound, "2^-53"},
      {"merge.columns.online", Kind::state, Layout::blocks, online, kFloat, kFloatBound, "2^-24"},
      in_ulps("softmax.columns.cached", Kind::softmax, Layout::columns, Algorithm::cached),
      in_ulps("logsumexp.columns.cached", Kind::lse, Layout::columns, Algorithm::cached),
      in_ulps("softmax.columns.online", Kind::softmax, Layout::columns, Algorithm::online),
      in_ulps("logsumexp.columns.online", Kind::lse, Layout::columns, Algorithm::online),
      {"state.rows.cached", Kind::state, Layout::rows, cached, kFloat, kFloatBound, "2^-24"},
      in_ulps("softmax.rows.cached", Kind::softmax, Layout::rows, Algorithm::cached),
      in_ulps("logsumexp.rows.cached", Kind::lse, Layout::rows, Algorithm::cached),
      in_ulps("softmax.rows.online", Kind::softmax, Layout::rows, Algorithm::online),
      in_ulps("logsumexp.rows.online", Kind::lse, Layout::rows, Algorithm::online),
      in_ulps("softmax.rows.three_pass", Kind::softmax, Layout::rows, Algorithm::three_pass),
      in_ulps("logsumexp.rows.three_pass", Kind::lse, Layout::rows, Algorithm::three_pass),
  };
  return all;
}

Tally check_pairs(const Check& check, const Format& format, const Request& request) {
  std::atomic<int> next{0};
  std::vector<Tally> tallies((size_t)request.threads);
  const auto work = [&](size_t thread) {
    Walk walk(check, format, request);
    for (int a; (a = request.stride * next.fetch_add(1)) < kCodes;) walk.all_of(a);
    tallies[thread] = walk.tally();
  };
  std::vector<std::thread> others;
  for (size_t i = 1; i < tallies.size(); ++i) others.emplace_back(work, i);
  work(0);
  for (std::thread& thread : others) thread.join();
  Tally all;
  for (const Tally& tally : tallies) all.add(tally);
  // Only what may not be the correctly rounded result was measured: nothing there, nothing past half a unit.
  const bool of_16_bits = check.kind == Kind::softmax || check.kind == Kind::lse;
  if (of_16_bits && all.not_correctly_rounded == 0) all.worst = 0.5, all.worst_a = all.worst_b = -1;
  return all;
}

}  // namespace exhaustive

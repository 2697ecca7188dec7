// Everything else: a row is gathered into adjacent elements, masked slots are selected out. Top-k reads rows this way
// too.
#include <vector>

#include "context.h"

namespace osm {

// ---- everything else: a row is gathered into adjacent elements, masked slots selected out

namespace {

struct Packed {
  const Context& c;
  Place row;
  char* data;       // one segment (or row) of elements
  uint8_t* live;    // which of them take part; all ones without a mask
  double* weights;  // null without weights
  char* kernel_scratch;
  int64_t live_count = 0;

  // Elements [from, from + n) of the row; masked ones and those of weight 0 become -inf.
  void gather(int64_t from, int64_t n) {
    const Problem& p = c.problem;
    std::memset(live, 1, (size_t)n);
    c.layout.each_run(from, n, [&](int64_t at, int64_t count, const Place& o, const Dim& d) {
      copy_elements(c.size, p.x + row.x + o.x, d.x, data + at * c.size, c.size, count);
      if (p.where) {
        const char* where = p.where + row.where + o.where;
        for (int64_t i = 0; i < count; ++i) live[at + i] = where[i * d.where] != 0;
      }
      if (p.weights) {
        copy_elements(8, p.weights + row.weights + o.weights, d.weights, (char*)(weights + at), 8, count);
        for (int64_t i = 0; i < count; ++i) live[at + i] &= weights[at + i] != 0;
        if (p.where)
          for (int64_t i = 0; i < count; ++i) weights[at + i] = live[at + i] ? weights[at + i] : 0.0;
      }
    });
    live_count = n;
    if (p.where || p.weights)
      live_count = c.size == 8 ? select<uint64_t>(n) : c.size == 4 ? select<uint32_t>(n) : select<uint16_t>(n);
  }
  template <class U>
  int64_t select(int64_t n) {
    U* element = (U*)data;
    char bits[8] = {};
    set_neg_inf(c.problem.dtype, bits);
    U blank;
    std::memcpy(&blank, bits, sizeof blank);
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) {
      element[i] = live[i] ? element[i] : blank;
      count += live[i];
    }
    return count;
  }

  // Results back to their places; masked slots get 0 (softmax) or -inf (log_softmax).
  void scatter(int64_t from, int64_t n) {
    const Problem& p = c.problem;
    char blank[8] = {};
    if (p.op == Op::log_softmax) set_neg_inf(p.dtype, blank);
    c.layout.each_run(from, n, [&](int64_t at, int64_t count, const Place& o, const Dim& d) {
      char* y = p.y + row.y + o.y;
      copy_elements(c.size, data + at * c.size, c.size, y, d.y, count);
      if (!p.where) return;
      for (int64_t i = 0; i < count; ++i)
        if (!live[at + i]) std::memcpy(y + i * d.y, blank, (size_t)c.size);
    });
  }

  // Sum of w*exp(x), a state whose s may have any sign. With the largest x as the pivot, where the terms that vanish
  // beside it cannot matter whatever their weights.
  RowState weighted(int64_t n) {
    if (c.algorithm == Algorithm::naive) return weighted_unshifted(n);
    const double m = c.kernels.maximum(data, n);
    if (!std::isfinite(m)) return weighted_apart(n);
    constexpr int64_t piece = 256;
    double wide[piece], e[piece], s = 0, greatest = 0;
    for (int64_t from = 0; from < n; from += piece) {
      const int64_t count = std::min(piece, n - from);
      c.kernels.widen(data + from * c.size, wide, count);
      c.problem.isa->kernels[(int)Dtype::f64].exps((const char*)wide, e, count, m);
      double part[4] = {}, top[4] = {};
      for (int64_t i = 0; i < count; ++i) {
        const double w = weights[from + i];
        part[i & 3] += w * e[i];
        top[i & 3] = std::max(top[i & 3], std::fabs(w));
      }
      s += (part[0] + part[1]) + (part[2] + part[3]);
      greatest = std::max({greatest, top[0], top[1], top[2], top[3]});
    }
    // exp vanishes some 745 below m: what is lost is less than 1e-300 of the greatest weight, a term. And m must not be
    // so large that log(s), which it is added to, loses its last bits to it.
    const bool whole = std::isfinite(s) && std::fabs(s) > (double)n * greatest * 1e-280;
    if (whole && std::fabs(m + std::log(std::fabs(s))) >= std::fabs(m) / 8) return {m, s};
    return weighted_apart(n);
  }
  // The same as a sum of sign(w)*exp(x + log|w|), with the largest exponent as the pivot. At +inf s counts the infinite
  // terms by their signs; both signs together are undefined.
  RowState weighted_apart(int64_t n) {
    double m = -HUGE_VAL, s = 0, infinite_up = 0, infinite_down = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double t = exponent(i);
      if (std::isnan(t)) return {t, t};
      if (t == HUGE_VAL) ++(weights[i] > 0 ? infinite_up : infinite_down);
      m = std::max(m, t);
    }
    if (m == HUGE_VAL) return {m, infinite_up > 0 && infinite_down > 0 ? std::nan("") : infinite_up - infinite_down};
    for (int64_t i = 0; i < n; ++i)
      if (live[i]) s += std::copysign(std::exp(exponent(i) - guard(m)), weights[i]);
    return {m, s};
  }
  double exponent(int64_t i) const { return live[i] ? element(i) + std::log(std::fabs(weights[i])) : -HUGE_VAL; }
  // The same with no maximum taken out, overflowing where the working format does.
  RowState weighted_unshifted(int64_t n) {
    double s = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (!live[i]) continue;
      const double e = std::exp(element(i));
      s += weights[i] * (c.problem.dtype == Dtype::f64 ? e : (double)(float)e);
    }
    return {0.0, s};
  }
  double element(int64_t i) const {
    double e;
    c.kernels.widen(data + i * c.size, &e, 1);
    return e;
  }
};

RowState packed_rest(const Context& c, Packed& p, int64_t chunk, double m, int64_t* equal) {
  RowState total{m, 0};
  *equal = 0;
  for (int64_t from = 0; from < c.layout.cols; from += chunk) {
    const int64_t n = std::min(chunk, c.layout.cols - from);
    p.gather(from, n);
    int64_t same = 0;
    total.s += rest_in_double(*c.problem.isa, c.problem.dtype, p.data, n, m, &same).s;
    *equal += same;
  }
  return total;
}

// The log-sum-exp of a row whose result is near 0. Its maximum is looked for again: a state of `naive` has none.
double packed_lse_near_0(const Context& c, Packed& p, int64_t chunk) {
  double m = -HUGE_VAL;
  for (int64_t from = 0; from < c.layout.cols; from += chunk) {
    const int64_t n = std::min(chunk, c.layout.cols - from);
    p.gather(from, n);
    m = std::max(m, c.kernels.maximum(p.data, n));
  }
  int64_t equal = 0;
  const RowState rest = packed_rest(c, p, chunk, m, &equal);
  return lse_of_rest(m, rest.s, equal);
}

// Infinite terms of both signs are undefined, in whichever pieces they lie.
State merge_weighted(const State& a, const State& b) {
  if (a.m == HUGE_VAL && b.m == HUGE_VAL && (a.s > 0) != (b.s > 0)) return {HUGE_VAL, std::nan("")};
  return merge(a, b);
}

void packed_reduce(const Context& c, Packed& p, int64_t chunk) {
  const int64_t cols = c.layout.cols;
  State all;
  for (int64_t from = 0; from < cols; from += chunk) {
    const int64_t n = std::min(chunk, cols - from);
    p.gather(from, n);
    RowState piece;
    if (p.weights) {
      piece = p.weighted(n);
    } else if (c.algorithm == Algorithm::online || chunk < cols) {
      piece = c.kernels.state(p.data, n);  // with the true maximum, for a result near 0
    } else {
      RowsJob job = rows_job(c);
      if (job.op == Op::lse && job.algorithm != Algorithm::naive) job.op = Op::state;
      job.x = p.data, job.rows = 1, job.cols = n, job.states = &piece, job.scratch = p.kernel_scratch;
      c.kernels.rows(job);
    }
    const State next = to_state(piece);
    all = from == 0 ? next : p.weights ? merge_weighted(all, next) : merge(all, next);
  }
  const RowState st = to_row(all);
  const int64_t at = p.row.result;
  if (c.problem.op == Op::state) return put_states(c, &st, &at, 1);
  if (p.weights) {
    const double s = st.s;
    const double lse = std::isnan(s) || st.m == -HUGE_VAL ? (std::isnan(s) ? s : st.m) : st.m + std::log(std::fabs(s));
    put_number(c.problem, c.problem.first, at, lse);
    put_number(c.problem, c.problem.second, at, std::isnan(s) ? s : (double)((s > 0) - (s < 0)));
    return;
  }
  put_lse(c, &st, &at, 1, [&](int64_t) { return packed_lse_near_0(c, p, chunk); });
}

void packed_map(const Context& c, Packed& p, int64_t chunk) {
  const int64_t cols = c.layout.cols;
  if (c.problem.given) {
    RowState st;
    read_states(c, p.row, 0, 1, &st);
    for (int64_t from = 0; from < cols; from += chunk) {
      const int64_t n = std::min(chunk, cols - from);
      p.gather(from, n);
      c.kernels.write(c.problem.op, p.data, p.data, n, st, std::log(st.s), false);
      p.scatter(from, n);
    }
    return;
  }
  if (chunk >= cols) {  // gathered once
    p.gather(0, cols);
    if (p.live_count) {
      RowsJob job = rows_job(c);
      job.x = p.data, job.y = p.data, job.rows = 1, job.cols = cols, job.stream = false, job.scratch = p.kernel_scratch;
      c.kernels.rows(job);
    }
    return p.scatter(0, cols);
  }
  State all;
  int64_t live = 0;
  for (int64_t from = 0; from < cols; from += chunk) {
    const int64_t n = std::min(chunk, cols - from);
    p.gather(from, n);
    live += p.live_count;
    const State piece = to_state(c.segment(p.data, n));
    all = from ? merge(all, piece) : piece;
  }
  const RowState st = to_row(all);
  const double log_s = c.problem.op == Op::log_softmax
                           ? log_sum(st, [&](int64_t* equal) { return packed_rest(c, p, chunk, st.m, equal); })
                           : 0.0;
  for (int64_t from = 0; from < cols; from += chunk) {
    const int64_t n = std::min(chunk, cols - from);
    p.gather(from, n);
    if (live) c.kernels.write(c.problem.op, p.data, p.data, n, st, log_s, false);
    p.scatter(from, n);
  }
}

}  // namespace

void run_packed(const Context& c) {
  const int64_t cols = c.layout.cols;
  // The teaching algorithms want the row whole; the others take it segment by segment, as rows of adjacent elements do.
  const bool whole =
      c.algorithm == Algorithm::naive || c.algorithm == Algorithm::three_pass || c.algorithm == Algorithm::cached;
  const int64_t chunk = whole && !c.problem.weights ? std::max<int64_t>(cols, 1) : kSegment;
  const int64_t room = std::min(chunk, std::max<int64_t>(cols, 1));
  const int64_t data = aligned64(room * c.size), live = aligned64(room),
                weights = c.problem.weights ? aligned64(room * 8) : 0;
  const int64_t scratch = rows_scratch(c.problem.dtype, c.algorithm == Algorithm::cached ? room : 0);
  const int64_t per_item = std::max<int64_t>(1, kItemBytes / std::max<int64_t>(1, cols * c.size));
  const int64_t items = (c.layout.rows + per_item - 1) / per_item;
  parallel_for(items, c.threads, [&](int64_t item) {
    char* base = thread_scratch(data + live + weights + scratch);
    Packed p{c,
             {},
             base,
             (uint8_t*)(base + data),
             weights ? (double*)(base + data + live) : nullptr,
             base + data + live + weights};
    for (int64_t r = item * per_item; r < std::min((item + 1) * per_item, c.layout.rows); ++r) {
      p.row = c.layout.place(r);
      if (c.writes())
        packed_map(c, p, chunk);
      else
        packed_reduce(c, p, chunk);
    }
  });
}
void run_topk(const TopkProblem& problem) {
  Problem inner = problem.rows;
  inner.op = Op::state;
  const Context c(inner);
  const int64_t cols = c.layout.cols, room = aligned64(std::min(kSegment, std::max<int64_t>(cols, 1)) * c.size);
  parallel_for(c.layout.rows, c.threads, [&](int64_t r) {
    Packed p{c, c.layout.place(r), nullptr, nullptr, nullptr, nullptr};
    char* base = thread_scratch(room + std::min(kSegment, std::max<int64_t>(cols, 1)));
    p.data = base, p.live = (uint8_t*)(base + room);
    const int64_t at = p.row.result, k = problem.k;
    State all;
    // Per segment: its state, and its own k largest merged into the row's, both while the segment is in cache.
    std::vector<double> best((size_t)k), mine((size_t)k), next((size_t)k);
    std::vector<int64_t> index((size_t)k), my_index((size_t)k), next_index((size_t)k);
    int64_t held = 0;
    for (int64_t from = 0; from < cols; from += kSegment) {
      const int64_t n = std::min(kSegment, cols - from);
      const char* x = c.problem.x + p.row.x + from * c.size;
      if (!c.layout.adjacent(c.size)) {
        p.gather(from, n);
        x = p.data;
      }
      const State piece = to_state(c.segment(x, n));
      all = from ? merge(all, piece) : piece;
      const int64_t found = std::min(k, n);
      if (found > 0) c.kernels.topk({x, n, found, mine.data(), my_index.data()});
      int64_t i = 0, j = 0, o = 0;
      const auto beats = [](double a, double b) { return a > b || (std::isnan(a) && !std::isnan(b)); };
      while (o < k && (i < held || j < found)) {
        const bool take_old = j >= found || (i < held && !beats(mine[(size_t)j], best[(size_t)i]));
        next[(size_t)o] = take_old ? best[(size_t)i] : mine[(size_t)j];
        next_index[(size_t)o++] = take_old ? index[(size_t)i++] : my_index[(size_t)j++] + from;
      }
      best.swap(next), index.swap(next_index), held = o;
    }
    const RowState st = to_row(all);
    c.problem.isa->finish(&st, &problem.lse[at], 1);
    if (std::fabs(problem.lse[at]) < 0.25) {
      int64_t equal = 0;
      const RowState rest = packed_rest(c, p, kSegment, st.m, &equal);
      problem.lse[at] = lse_of_rest(st.m, rest.s, equal);
    }
    for (int64_t i = 0; i < k; ++i) {
      const bool fine = std::isfinite(st.m) && !std::isnan(st.s);
      problem.values[at * k + i] = fine ? std::exp(best[(size_t)i] - st.m) / st.s : std::nan("");
      problem.places[at * k + i] = index[(size_t)i];
    }
  });
}

}  // namespace osm

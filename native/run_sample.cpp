// Drawing on the CPU: rows cut into pieces, their states and best keys merged; rows with filters by a list of the
// tokens that may be kept.
#include "pool.h"
#include "sample_filter.h"

namespace osm {
namespace isa_scalar {
extern const SampleKernels sample[kDtypes];
}
#ifdef OSM_X86
namespace isa_avx2 {
extern const SampleKernels sample[kDtypes];
}
namespace isa_avx512 {
extern const SampleKernels sample[kDtypes];
}
#elif defined(OSM_ARM)
namespace isa_neon {
extern const SampleKernels sample[kDtypes];
}
#endif

const SampleKernels& sample_kernels_of(const Isa& isa, Dtype dtype) {
  const SampleKernels* all = isa_scalar::sample;
#ifdef OSM_X86
  if (!std::strcmp(isa.name, "avx2")) all = isa_avx2::sample;
  if (!std::strcmp(isa.name, "avx512")) all = isa_avx512::sample;
#elif defined(OSM_ARM)
  if (!std::strcmp(isa.name, "neon")) all = isa_neon::sample;
#endif
  return all[(int)dtype];
}

namespace {

// The log-probability of a token from the pieces' states.
double log_probability(const Row& row, const std::vector<SamplePiece>& pieces, const SampleBest& best,
                       const State& law) {
  const double p = (best.logit - law.m) - std::log(law.s);
  if (p < kSharp) return p;
  double others = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const SampleJob job = row.job((int64_t)i, false, false);
    double sum = pieces[i].state.s;
    const int64_t at = best.token - job.first;
    if (at >= 0 && at < job.n) {
      const int64_t start = std::max(job.first, best.token / kSampleFold * kSampleFold);
      SampleJob group = job;
      group.x += (start - job.first) * row.c.size, group.first = start;
      group.n = std::min(job.first + job.n, best.token / kSampleFold * kSampleFold + kSampleFold) - start;
      const double with = row.kernels.sum(group, pieces[i].pivot, -1);
      sum = sum - with + row.kernels.sum(group, pieces[i].pivot, best.token - start);
    }
    if (sum > 0) others += sum * std::exp(pieces[i].state.m - best.logit);
  }
  return -std::log1p(others);
}

Drawn finish(const Row& row, const std::vector<SamplePiece>& pieces) {
  Drawn drawn;
  drawn.law = law_of(pieces);
  for (const SamplePiece& piece : pieces)
    if (sample_beats(piece.best, drawn.best)) drawn.best = piece.best;
  if (spoilt(drawn.law) || drawn.best.token < 0) {
    drawn.best = kNoBest;
    return drawn;
  }
  if (!row.problem.keys) drawn.log_probability = log_probability(row, pieces, drawn.best, drawn.law);
  return drawn;
}

Drawn greedy(const Row& row) {
  Drawn drawn;
  int64_t found = -1;
  for (int64_t i = 0; i < row.pieces(); ++i) {
    const SampleJob job = row.job(i, false, true);
    const State piece = to_state(row.c.kernels.state(job.x, job.n));
    if (found < 0 || piece.m > drawn.law.m) found = i;
    drawn.law = i ? merge(drawn.law, piece) : piece;
  }
  if (spoilt(drawn.law) || drawn.law.m == -HUGE_VAL) return drawn;
  const SampleJob job = row.job(found, false, true);
  const double m = drawn.law.m;
  drawn.best = {m, 0, m, job.first + row.kernels.find(job.x, job.n, m)};
  if (!row.problem.keys) drawn.log_probability = -row.c.kernels.log_sum(row.x, row.cols(), to_row(drawn.law));
  return drawn;
}

void put(const SampleProblem& p, int64_t row, const Drawn& d) {
  p.tokens[row] = d.best.token;
  if (!p.keys) {
    p.log_probabilities[row] = d.log_probability;
    return;
  }
  p.keys[row] = d.best.key, p.rests[row] = d.best.rest, p.logits[row] = d.best.logit, p.m[row] = d.law.m,
  p.s[row] = d.law.s;
}

}  // namespace

void run_sample(const SampleProblem& problem) {
  Problem inner = problem.rows;
  inner.op = Op::state;
  const Context c(inner);
  const SampleKernels& kernels = sample_kernels_of(*inner.isa, inner.dtype);
  const bool adjacent = c.layout.along.size() == 1 && (c.layout.along[0].size == 1 || c.layout.along[0].x == c.size);
  const int64_t rows = c.layout.rows, cols = c.layout.cols;
  const auto row_at = [&](int64_t r) {
    const Place place = c.layout.place(r);
    Row row(problem, c, kernels, place.result);
    if (adjacent) row.x = inner.x + place.x;
    return row;
  };
  const auto plain = [](const Row& row) { return !row.greedy() && !row.filtered(); };

  // Few long rows are shared out by pieces.
  const int64_t pieces = Row(problem, c, kernels, 0).pieces();
  const bool split = adjacent && c.threads > 1 && pieces > 1 && rows < 4 * c.threads;
  std::vector<SamplePiece> all;
  const bool state = problem.keys != nullptr;
  if (split) {
    all.resize((size_t)(rows * pieces));
    parallel_for(rows * pieces, c.threads, [&](int64_t i) {
      const Row row = row_at(i / pieces);
      if (plain(row)) all[(size_t)i] = piece_of(row, i % pieces, true, state);
    });
  }
  const int64_t gathered = adjacent ? 0 : aligned64(cols * c.size);
  parallel_for(rows, c.threads, [&](int64_t r) {
    Row row = row_at(r);
    const bool filtered = row.filtered();
    char* room = thread_scratch(gathered + (filtered ? Filter::room(cols) : 0));
    if (!adjacent) {
      const Place place = c.layout.place(r);
      c.layout.each_run(0, cols, [&](int64_t at, int64_t count, const Place& o, const Dim& d) {
        for (int64_t i = 0; i < count; ++i)
          std::memcpy(room + (at + i) * c.size, inner.x + place.x + o.x + i * d.x, (size_t)c.size);
      });
      row.x = room;
    }
    if (filtered) return put(problem, row.number, Filter(row, room + gathered).draw());
    if (row.greedy()) return put(problem, row.number, greedy(row));
    std::vector<SamplePiece> mine;
    if (split)
      mine.assign(all.begin() + r * pieces, all.begin() + (r + 1) * pieces);
    else
      for (int64_t i = 0; i < row.pieces(); ++i) mine.push_back(piece_of(row, i, true, state));
    put(problem, row.number, finish(row, mine));
  });
}

}  // namespace osm

// A row to draw from: its options and its pieces.
#pragma once
#include <vector>

#include "context.h"
#include "sample.h"

namespace osm {

// Where a token's log-probability is above this, 1 - p is summed by itself: log(1 + r) keeps what log(s) would not.
constexpr double kSharp = -0.25;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Drawn {
  SampleBest best = kNoBest;
  State law;
  double log_probability = kNaN;
};

struct Row {
  const SampleProblem& problem;
  const Context& c;
  const SampleKernels& kernels;
  int64_t number;  // row-major
  const char* x;   // adjacent elements
  double temperature;

  Row(const SampleProblem& problem, const Context& c, const SampleKernels& kernels, int64_t number)
      : problem(problem),
        c(c),
        kernels(kernels),
        number(number),
        x(nullptr),
        temperature(problem.temperature[number]) {}

  int64_t cols() const { return c.layout.cols; }
  bool greedy() const { return temperature == 0; }
  double warmth() const { return greedy() ? 1.0 : temperature; }
  int64_t most() const { return problem.top_k && problem.top_k[number] ? problem.top_k[number] : cols(); }
  double reach() const { return problem.top_p ? problem.top_p[number] : 1.0; }
  double least() const { return problem.min_p ? problem.min_p[number] : 0.0; }
  bool filtered() const { return most() < cols() || reach() < 1 || least() > 0; }

  SampleNoise noise() const {
    return sample_noise(problem.seed, problem.draw, (uint64_t)problem.first_row + (uint64_t)number, problem.same);
  }
  // Pieces are cut at multiples of kSegment by token number, wherever the row begins.
  int64_t pieces() const {
    const int64_t first = problem.first_token;
    return cols() ? (first + cols() - 1) / kSegment - first / kSegment + 1 : 0;
  }
  SampleJob job(int64_t piece, bool draws, bool true_maximum) const {
    const int64_t first = problem.first_token, start = (first / kSegment + piece) * kSegment;
    const int64_t from = std::max(first, start), to = std::min(first + cols(), start + kSegment);
    return {x + (from - first) * c.size, to - from, from, warmth(), noise(), true_maximum, draws};
  }
};

inline SamplePiece piece_of(const Row& row, int64_t i, bool draws, bool true_maximum) {
  SamplePiece piece;
  const SampleJob job = row.job(i, draws, true_maximum);
  row.kernels.piece(job, &piece);
  // The law of infinities and NaN, by the kernels that know it.
  if (std::isnan(piece.state.s)) piece.state = row.c.kernels.state(job.x, job.n);
  return piece;
}

inline bool spoilt(const State& law) { return std::isnan(law.s) || std::isnan(law.m) || law.m == HUGE_VAL; }

inline State law_of(const std::vector<SamplePiece>& pieces) {
  State law;
  for (size_t i = 0; i < pieces.size(); ++i)
    law = i ? merge(law, to_state(pieces[i].state)) : to_state(pieces[i].state);
  return law;
}

}  // namespace osm

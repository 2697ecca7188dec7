// Which of a list of tokens a filter keeps: the greatest, down to a mark, found without sorting them.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace osm {

// Keep what is above z, and the first `ties` of those equal to it. before, after: what the kept weigh without and with
// the last of them.
struct SampleCut {
  double z;
  int64_t ties;
  double before, after;
};

// Tokens in their order: logit over the temperature, place in the row, weight.
struct SampleList {
  double *z, *w;
  int64_t* places;
  double *some_z, *some_w;  // scratch of select()
  int64_t n = 0;

  SampleList(char* room, int64_t most) {
    z = (double*)room, w = z + most, places = (int64_t*)(w + most);
    some_z = (double*)(places + most), some_w = some_z + most;
  }
  static int64_t room(int64_t most) { return 40 * most; }

  double total() const {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += w[i];
    return sum;
  }

  void keep(const SampleCut& cut) {
    int64_t kept = 0, ties = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (z[i] < cut.z || (z[i] == cut.z && ++ties > cut.ties)) continue;
      move(i, kept++);
    }
    n = kept;
  }
  // Those that weigh at least so much.
  void keep_weights(double least) {
    int64_t kept = 0;
    for (int64_t i = 0; i < n; ++i)
      if (w[i] >= least) move(i, kept++);
    n = kept;
  }

  // The fewest of the greatest whose weights (1 each, where null) come to `target`; all, where they do not. Equal ones
  // are taken in their order. Buckets by value, then those of the bucket the mark falls in: O(n).
  SampleCut select(const double* weights, double target) const {
    constexpr int buckets = 256;
    const auto weight = [&](const double* ws, int64_t i) { return weights ? ws[i] : 1.0; };
    const double *zs = z, *ws = weights;
    int64_t count = n;
    double above = 0;
    while (count > 64) {
      const auto [low, high] = std::minmax_element(zs, zs + count);
      const double top = *high, scale = (buckets - 1) / (top - *low);
      if (!(scale > 0 && scale < 1e300)) break;  // all equal, or too far apart or near to say
      const auto bucket = [&](double value) { return (int)((top - value) * scale); };
      double sums[buckets] = {};
      for (int64_t i = 0; i < count; ++i) sums[bucket(zs[i])] += weight(ws, i);
      int b = 0;
      for (; b < buckets && above + sums[b] < target; ++b) above += sums[b];
      if (b == buckets) return {-__builtin_inf(), 0, above, above};
      int64_t kept = 0;
      for (int64_t i = 0; i < count; ++i) {
        if (bucket(zs[i]) != b) continue;
        const double value = zs[i], its = weight(ws, i);
        some_z[kept] = value;
        if (weights) some_w[kept] = its;
        ++kept;
      }
      if (kept == count) break;
      zs = some_z, ws = some_w, count = kept;
    }
    return last_of(zs, weights ? ws : nullptr, count, above, target);
  }

 private:
  void move(int64_t from, int64_t to) { z[to] = z[from], w[to] = w[from], places[to] = places[from]; }

  struct Entry {
    double value, its;
  };
  static bool falling(const Entry& a, const Entry& b) { return a.value > b.value; }

  static SampleCut last_of(const double* zs, const double* ws, int64_t count, double above, double target) {
    std::vector<Entry> sorted;
    for (int64_t i = 0; i < count; ++i) sorted.push_back({zs[i], ws ? ws[i] : 1.0});
    if (!std::is_sorted(sorted.begin(), sorted.end(), falling)) std::sort(sorted.begin(), sorted.end(), falling);
    SampleCut cut{-__builtin_inf(), 0, above, above};
    for (const auto& [value, its] : sorted) {
      if (cut.after >= target) break;
      cut.ties = value == cut.z ? cut.ties + 1 : 1;
      cut.z = value, cut.before = cut.after, cut.after += its;
    }
    return cut;
  }
};

}  // namespace osm

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
    // Blocks, whose sums are added with what rounding leaves out: a list may have all tokens of the row.
    constexpr int64_t block = 64;
    double all = 0, lost = 0;
    for (int64_t from = 0; from < n; from += block) {
      const int64_t to = std::min(n, from + block);
      double sum[4] = {};
      int64_t i = from;
      for (; i + 4 <= to; i += 4)
        for (int k = 0; k < 4; ++k) sum[k] += w[i + k];
      for (; i < to; ++i) sum[0] += w[i];
      const double part = (sum[0] + sum[1]) + (sum[2] + sum[3]) - lost, next = all + part;
      lost = (next - all) - part, all = next;
    }
    return all;
  }

  // False where there is none, or one is NaN or +inf.
  bool greatest(double* m) const {
    double top[4] = {-__builtin_inf(), -__builtin_inf(), -__builtin_inf(), -__builtin_inf()};
    int bad = 0;
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
      for (int k = 0; k < 4; ++k) bad |= !(z[i + k] < __builtin_inf()), top[k] = std::max(top[k], z[i + k]);
    for (; i < n; ++i) bad |= !(z[i] < __builtin_inf()), top[0] = std::max(top[0], z[i]);
    *m = std::max(std::max(top[0], top[1]), std::max(top[2], top[3]));
    return n > 0 && !bad;
  }

  void keep(const SampleCut& cut) {
    int64_t kept = 0, ties = 0;
    // What stays and what goes come in no order that a branch could be foretold by.
    for (int64_t i = 0; i < n; ++i) {
      const bool tie = z[i] == cut.z;
      ties += tie;
      move(i, kept);
      kept += (z[i] > cut.z) | (tie & (ties <= cut.ties));
    }
    n = kept;
  }
  // Those that weigh at least so much.
  void keep_weights(double least) {
    int64_t kept = 0;
    for (int64_t i = 0; i < n; ++i) {
      const bool stays = w[i] >= least;
      move(i, kept), kept += stays;
    }
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
      double low[4] = {zs[0], zs[0], zs[0], zs[0]}, high[4] = {zs[0], zs[0], zs[0], zs[0]};
      for (int64_t i = 0; i + 4 <= count; i += 4)
        for (int k = 0; k < 4; ++k) low[k] = std::min(low[k], zs[i + k]), high[k] = std::max(high[k], zs[i + k]);
      for (int64_t i = count - count % 4; i < count; ++i)
        low[0] = std::min(low[0], zs[i]), high[0] = std::max(high[0], zs[i]);
      const double least = std::min(std::min(low[0], low[1]), std::min(low[2], low[3]));
      const double top = std::max(std::max(high[0], high[1]), std::max(high[2], high[3]));
      const double scale = (buckets - 1) / (top - least);
      if (!(scale > 0 && scale < 1e300)) break;  // all equal, or too far apart or near to say
      const auto bucket = [&](double value) { return (int)((top - value) * scale); };
      double sums[buckets] = {};
      for (int64_t i = 0; i < count; ++i) sums[bucket(zs[i])] += weight(ws, i);
      int b = 0;
      for (; b < buckets && above + sums[b] < target; ++b) above += sums[b];
      if (b == buckets) return {-__builtin_inf(), 0, above, above};
      int64_t kept = 0;
      for (int64_t i = 0; i < count; ++i) {
        const double value = zs[i], its = weight(ws, i);
        const bool inside = bucket(value) == b;
        some_z[kept] = value, some_w[kept] = its;
        kept += inside;
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

// What forward and backward share: the rows of one head of k, which keys each may see, and where these lie.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention.h"

namespace osm {

constexpr int64_t kTile = 48;  // query rows of a tile
constexpr double kEmpty = -std::numeric_limits<double>::infinity();

inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Threads that are worth waking: of so few multiply-adds (some tens of microseconds) the caller does all by itself.
inline int worth_waking(const AttentionProblem& p) {
  constexpr double few = 200'000;
  double all = 0;
  for (int64_t b = 0; b < p.batch; ++b) all += (double)p.sequences[b].queries * (double)p.sequences[b].keys;
  return all * (double)(p.heads * (p.d + p.dv)) < few ? 1 : p.threads;
}

// Weights whose number lies below this are dropped.
inline uint32_t drop_below(double p) { return (uint32_t)std::min(std::nearbyint(p * 0x1p32), 0x1p32 - 1); }

inline uint64_t mixed(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}
inline void throw_dice(uint64_t seed, int64_t batch, int64_t head, int64_t query, uint32_t (&dice)[2]) {
  uint64_t x = seed;
  for (const int64_t part : {batch, head, query}) x = mixed(x + 0x9e3779b97f4a7c15u * (uint64_t)(part + 1));
  dice[0] = (uint32_t)x, dice[1] = (uint32_t)(x >> 32);
}

// The rows of the query heads that share a head of k, in one sequence: head by head, query by query.
class HeadRows {
 public:
  HeadRows(const AttentionProblem& p, int64_t batch, int64_t group)
      : p_(p), batch_(batch), group_(group), share_(p.heads / p.groups), sequence_(p.sequences[batch]) {
    shift_ = p.placed ? p.origin[2] - p.origin[3] : p.lower_right ? sequence_.keys - sequence_.queries : 0;
  }
  int64_t count() const { return share_ * sequence_.queries; }
  int64_t keys() const { return sequence_.keys; }
  int64_t head(int64_t r) const { return group_ * share_ + r / sequence_.queries; }
  const char* at(const AttentionArray& a, int64_t r) const {
    return a.p + batch_ * a.strides[0] + head(r) * a.strides[1] + (sequence_.query + query(r)) * a.strides[2];
  }
  double scale() const { return p_.scale * (p_.k_scales ? p_.k_scales[batch_ * p_.groups + group_] : 1); }
  double v_scale() const { return p_.v_scales ? p_.v_scales[batch_ * p_.groups + group_] : 1; }

  // Addresses of the rows of k or v from `key` on.
  void addresses(const AttentionArray& a, int64_t key, int64_t n, const char** rows) const {
    const char* head = a.p + group_ * a.strides[1];
    for (int64_t j = 0; j < n; ++j) {
      const int64_t at = sequence_.key + key + j;
      rows[j] = p_.blocks ? head + p_.blocks[batch_ * p_.blocks_stride + at / p_.block_size] * a.strides[0] +
                                at % p_.block_size * a.strides[2]
                          : head + batch_ * a.strides[0] + at * a.strides[2];
    }
  }
  // What rows [first, first + n) may see of the keys [key, key + keys), and in `from` and `to` what any of them may.
  // False: nothing. A mask shortens the range from both ends, and so leaves out whole pieces of padding.
  bool rules(int64_t first, int64_t n, int64_t key, int64_t keys, AttentionRow* rules, int64_t& from,
             int64_t& to) const {
    from = keys, to = 0;
    // The last range that a mask shortened, before and after: rows often share it.
    const uint8_t* mask = nullptr;
    int64_t before[2] = {}, after[2] = {};
    for (int64_t r = 0; r < n; ++r) {
      AttentionRow& row = rules[r] = rule(first + r, key, keys);
      if (row.mask && row.lo < row.hi) {
        if (row.mask != mask || row.lo != before[0] || row.hi != before[1]) {
          mask = row.mask, before[0] = row.lo, before[1] = row.hi;
          int64_t lo = row.lo, hi = row.hi;
          while (lo < hi && !mask[lo * row.mask_step]) ++lo;
          while (lo < hi && !mask[(hi - 1) * row.mask_step]) --hi;
          after[0] = lo, after[1] = hi;
        }
        row.lo = after[0], row.hi = after[1];
      }
      if (row.lo < row.hi) from = std::min(from, row.lo), to = std::max(to, row.hi);
    }
    return from < to;
  }
  // Whether any row in [first, first + n) may see keys [key, key + keys), as far as the band goes.
  bool near(int64_t first, int64_t n, int64_t key, int64_t keys) const {
    int64_t least = query(first), most = query(first + n - 1);
    if (head(first) != head(first + n - 1)) least = 0, most = sequence_.queries - 1;
    return lo(least) < key + keys && hi(most) > key;
  }

 private:
  int64_t query(int64_t r) const { return r % sequence_.queries; }
  int64_t lo(int64_t query) const {
    return p_.left == INT64_MAX ? 0 : std::clamp<int64_t>(query + shift_ - p_.left, 0, sequence_.keys);
  }
  int64_t hi(int64_t query) const {
    return p_.right == INT64_MAX ? sequence_.keys
                                 : std::clamp<int64_t>(query + shift_ + p_.right + 1, 0, sequence_.keys);
  }
  AttentionRow rule(int64_t r, int64_t key, int64_t n) const {
    const int64_t i = query(r);
    AttentionRow row{};
    row.lo = std::clamp<int64_t>(lo(i) - key, 0, n), row.hi = std::clamp<int64_t>(hi(i) - key, row.lo, n);
    const int64_t at = sequence_.key + key;
    if (p_.mask.p) row.mask = (const uint8_t*)this->at(p_.mask, r) + at * p_.mask.strides[3];
    if (p_.bias.p) row.bias = this->at(p_.bias, r) + at * p_.bias.strides[3];
    row.mask_step = p_.mask.strides[3], row.bias_step = p_.bias.strides[3];
    if (p_.slopes) row.slope = p_.slopes[batch_ * p_.heads + head(r)];
    row.away = key - i - shift_;
    row.whole = lo(i) >= key && hi(i) <= key + n;
    if (p_.drop > 0) throw_dice(p_.seed, p_.origin[0] + batch_, p_.origin[1] + head(r), p_.origin[2] + i, row.dice);
    return row;
  }

  const AttentionProblem& p_;
  const int64_t batch_, group_, share_;
  const AttentionSequence sequence_;
  int64_t shift_;
};

struct Carved {  // scratch, piece by piece
  char* at;
  template <class T = char>
  T* take(int64_t bytes) {
    char* here = at;
    at += round_up(bytes, 64);
    return (T*)here;
  }
};

}  // namespace osm

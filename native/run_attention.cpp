// Attention on the CPU: which tiles meet which keys, in what order, on which thread.
//
// A tile is up to kTile query rows of one head of k and v; the rows of the query heads that share it lie one after the
// other. An item of work is up to kTiles tiles, which meet the keys chunk by chunk: a chunk of K and V is packed once
// for all of them. Keys are cut into segments of kKeySegment wherever they lie, each with a state of its own, merged
// from left to right: so a row's bits depend on neither the threads nor the batch, and few rows over many keys can be
// shared out by segments.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "attention.h"
#include "pool.h"
#include "state.h"

namespace osm {
namespace isa_scalar {
extern const AttentionKernels attention[kDtypes];
}
#ifdef OSM_X86
namespace isa_avx2 {
extern const AttentionKernels attention[kDtypes];
}
namespace isa_avx512 {
extern const AttentionKernels attention[kDtypes];
}
#elif defined(OSM_ARM)
namespace isa_neon {
extern const AttentionKernels attention[kDtypes];
}
#endif

const AttentionKernels& attention_kernels_of(const Isa& isa, Dtype dtype) {
  const AttentionKernels* all = isa_scalar::attention;
#ifdef OSM_X86
  if (!std::strcmp(isa.name, "avx2")) all = isa_avx2::attention;
  if (!std::strcmp(isa.name, "avx512")) all = isa_avx512::attention;
#elif defined(OSM_ARM)
  if (!std::strcmp(isa.name, "neon")) all = isa_neon::attention;
#endif
  return all[(int)dtype];
}

namespace {

constexpr int64_t kTile = 48;
constexpr int64_t kTiles = 16;
constexpr int64_t kKeySegment = 4096;
constexpr double kEmpty = -std::numeric_limits<double>::infinity();

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Sizes that follow from the problem, the same for all its items.
struct Plan {
  const AttentionProblem& p;
  const AttentionKernels& kernels;
  int64_t share;  // query heads of a head of k
  int64_t rows;   // of a head of k: share * queries
  int64_t chunk;  // keys packed at a time
  int64_t width;  // of a row of O: dv filled up to whole vectors
  int64_t items;  // of a head of k
  int64_t segments;

  explicit Plan(const AttentionProblem& problem)
      : p(problem), kernels(attention_kernels_of(*problem.isa, problem.dtype)) {
    share = p.heads / p.groups;
    rows = share * p.queries;
    // K and V of a chunk take 128 KiB each at most: half of a second-level cache with the scores beside them.
    const int64_t fits = (128 << 10) / (kernels.size * std::max<int64_t>(1, std::max(p.d, p.dv)));
    chunk = std::clamp(fits / kernels.panel * kernels.panel, kernels.panel, std::min(kMostKeys, kKeySegment));
    width = round_up(std::max<int64_t>(1, p.dv), kernels.width);
    items = (rows + kTile * kTiles - 1) / (kTile * kTiles);
    segments = std::max<int64_t>(1, (p.keys + kKeySegment - 1) / kKeySegment);
  }
  int64_t lo(int64_t query) const {
    return p.left == INT64_MAX ? 0 : std::clamp<int64_t>(query + p.diagonal - p.left, 0, p.keys);
  }
  int64_t hi(int64_t query) const {
    return p.right == INT64_MAX ? p.keys : std::clamp<int64_t>(query + p.diagonal + p.right + 1, 0, p.keys);
  }
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

// One item: tiles of one head of k, over one segment after the other.
class Item {
 public:
  Item(const Plan& plan, int64_t which) : plan_(plan), p_(plan.p), kernels_(plan.kernels) {
    batch_ = which / plan.items / p_.groups, group_ = which / plan.items % p_.groups;
    first_ = which % plan.items * kTile * kTiles;
    count_ = std::min(plan.rows - first_, kTile * kTiles);
    const int64_t size = kernels_.size, panels_k = round_up(plan.chunk, kernels_.panel);
    const int64_t parts[] = {count_ * p_.d * size,
                             count_ * plan.width * size,
                             count_ * plan.width * size,
                             panels_k * p_.d * size,
                             plan.chunk * round_up(p_.dv, kernels_.panel) * size,
                             kTile * panels_k * size,
                             count_ * (int64_t)sizeof(AttentionState),
                             count_ * (int64_t)sizeof(AttentionState)};
    int64_t bytes = 0;
    for (const int64_t part : parts) bytes += round_up(part, 64);
    Carved scratch{thread_scratch(bytes)};
    q_ = scratch.take(parts[0]), o_ = scratch.take(parts[1]), part_o_ = scratch.take(parts[2]);
    k_ = scratch.take(parts[3]), v_ = scratch.take(parts[4]), scores_ = scratch.take(parts[5]);
    states_ = scratch.take<AttentionState>(parts[6]), part_states_ = scratch.take<AttentionState>(parts[7]);
    for (int64_t r = 0; r < count_; ++r) kernels_.pack_q(row_of(p_.q, r), p_.q.strides[3], p_.d, q_ + r * p_.d * size);
  }

  // All keys, and the results put down.
  void whole() {
    clear(states_, o_);
    for (int64_t s = 0; s < plan_.segments; ++s) {
      if (s == 0) {
        over(s, states_, o_);
      } else {
        clear(part_states_, part_o_);
        over(s, part_states_, part_o_);
        add(part_states_, part_o_);
      }
    }
    finish();
  }
  // One segment, its states and rows of O left at `states` and `o`.
  void part(int64_t segment, AttentionState* states, char* o) {
    clear(states, o);
    over(segment, states, o);
  }
  // What part() left of all segments, merged and put down.
  void join(const AttentionState* states, const char* o) {
    const int64_t bytes = count_ * plan_.width * kernels_.size;
    std::copy(states, states + count_, states_);
    std::copy(o, o + bytes, o_);
    for (int64_t s = 1; s < plan_.segments; ++s) add(states + s * count_, o + s * bytes);
    finish();
  }
  int64_t count() const { return count_; }

 private:
  int64_t head(int64_t r) const { return group_ * plan_.share + (first_ + r) / p_.queries; }
  int64_t query(int64_t r) const { return (first_ + r) % p_.queries; }
  const char* row_of(const AttentionArray& a, int64_t r) const {
    return a.p + batch_ * a.strides[0] + head(r) * a.strides[1] + query(r) * a.strides[2];
  }
  void clear(AttentionState* states, char* o) const {
    std::fill(states, states + count_, AttentionState{kEmpty, 0});
    std::fill(o, o + count_ * plan_.width * kernels_.size, 0);
  }
  void add(const AttentionState* states, const char* o) {
    const int64_t stride = plan_.width * kernels_.size;
    for (int64_t r = 0; r < count_; ++r)
      kernels_.merge(states_ + r, o_ + r * stride, states + r, o + r * stride, plan_.width);
  }

  AttentionRow rule(int64_t r, int64_t key, int64_t n) const {
    const int64_t i = query(r);
    AttentionRow row{};
    row.lo = std::clamp<int64_t>(plan_.lo(i) - key, 0, n), row.hi = std::clamp<int64_t>(plan_.hi(i) - key, row.lo, n);
    if (p_.mask.p) row.mask = (const uint8_t*)row_of(p_.mask, r) + key * p_.mask.strides[3];
    if (p_.bias.p) row.bias = row_of(p_.bias, r) + key * p_.bias.strides[3];
    row.mask_step = p_.mask.strides[3], row.bias_step = p_.bias.strides[3];
    if (p_.slopes) row.slope = p_.slopes[batch_ * p_.heads + head(r)];
    row.away = key - i - p_.diagonal;
    return row;
  }
  // Whether any of the row's keys may count: a mask of zeros alone leaves the whole chunk out.
  bool sees(const AttentionRow& row) const {
    if (row.lo >= row.hi) return false;
    if (!row.mask) return true;
    for (int64_t j = row.lo; j < row.hi; ++j)
      if (row.mask[j * row.mask_step]) return true;
    return false;
  }

  void over(int64_t segment, AttentionState* states, char* o) {
    const int64_t end = std::min(p_.keys, (segment + 1) * kKeySegment);
    for (int64_t key = segment * kKeySegment; key < end; key += plan_.chunk)
      chunk(key, std::min(plan_.chunk, end - key), states, o);
  }

  void chunk(int64_t key, int64_t n, AttentionState* states, char* o) {
    bool packed = false, finite = true;
    for (int64_t t = 0; t < count_; t += kTile) {
      const int64_t rows = std::min(kTile, count_ - t);
      AttentionRow rules[kTile];
      bool any = false;
      for (int64_t r = 0; r < rows; ++r) {
        rules[r] = rule(t + r, key, n);
        any = any || sees(rules[r]);
      }
      if (!any) continue;
      if (!packed) {
        const auto at = [&](const AttentionArray& a) {
          return a.p + batch_ * a.strides[0] + group_ * a.strides[1] + key * a.strides[2];
        };
        kernels_.pack_k(at(p_.k), p_.k.strides[2], p_.k.strides[3], n, p_.d, k_);
        finite = kernels_.pack_v(at(p_.v), p_.v.strides[2], p_.v.strides[3], n, p_.dv, v_);
        packed = true;
      }
      AttentionBlock b{};
      b.count = (int)rows, b.keys = n, b.d = p_.d, b.dv = p_.dv;
      b.q = q_ + t * p_.d * kernels_.size, b.q_stride = p_.d;
      b.k = k_, b.v = v_, b.scale = p_.scale, b.softcap = p_.softcap, b.finite = finite;
      b.rows = rules, b.states = states + t;
      b.o = o + t * plan_.width * kernels_.size, b.o_stride = plan_.width;
      b.scores = scores_, b.score_stride = round_up(plan_.chunk, kernels_.panel);
      kernels_.block(b);
    }
  }

  void finish() {
    for (int64_t r = 0; r < count_; ++r) {
      AttentionState s = states_[r];
      double by = 1 / s.sum, lse = s.pivot + std::log(s.sum);
      if (s.sum == 0) by = 0, lse = kEmpty;
      if (p_.sinks) {
        const State all =
            merge({lse, lse == kEmpty ? 0.0 : 1.0}, {p_.sinks[head(r)], p_.sinks[head(r)] == kEmpty ? 0.0 : 1.0});
        const double with = all.s == 0 ? kEmpty : all.m + std::log(all.s);
        if (lse != kEmpty) by *= std::exp(lse - with);
        lse = with;
      }
      kernels_.finish(o_ + r * plan_.width * kernels_.size, by, p_.dv, (char*)row_of(p_.o, r), p_.o.strides[3]);
      if (!p_.lse) continue;
      const int64_t at = (batch_ * p_.heads + head(r)) * p_.queries + query(r);
      if (p_.single)
        ((float*)p_.lse)[at] = (float)lse;
      else
        ((double*)p_.lse)[at] = lse;
    }
  }

  const Plan& plan_;
  const AttentionProblem& p_;
  const AttentionKernels& kernels_;
  int64_t batch_, group_, first_, count_;
  char *q_, *o_, *part_o_, *k_, *v_, *scores_;
  AttentionState *states_, *part_states_;
};

}  // namespace

void run_attention(const AttentionProblem& problem) {
  const Plan plan(problem);
  const int64_t items = problem.batch * problem.groups * plan.items;
  if (items >= 2 * problem.threads || plan.segments == 1 || problem.threads == 1) {
    parallel_for(items, problem.threads, [&](int64_t i) { Item(plan, i).whole(); });
    return;
  }
  const int64_t most = std::min(plan.rows, kTile * kTiles), row = plan.width * plan.kernels.size;
  std::vector<AttentionState> states((size_t)(items * plan.segments * most));
  std::vector<char> o((size_t)(items * plan.segments * most * row));
  parallel_for(items * plan.segments, problem.threads, [&](int64_t i) {
    const int64_t which = i / plan.segments, segment = i % plan.segments;
    Item item(plan, which);
    const int64_t at = which * plan.segments * most + segment * item.count();
    item.part(segment, states.data() + at, o.data() + at * row);
  });
  parallel_for(items, problem.threads, [&](int64_t i) {
    Item(plan, i).join(states.data() + i * plan.segments * most, o.data() + i * plan.segments * most * row);
  });
}

}  // namespace osm

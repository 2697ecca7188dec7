// Attention on the CPU: which tiles meet which keys, in what order, on which thread.
//
// A tile is up to kTile query rows of one head of k and v; the rows of the query heads that share it lie one after the
// other. An item of work is up to kTiles tiles, which meet the keys chunk by chunk: a chunk of K and V is packed once
// for all of them. Keys are cut into segments of kKeySegment wherever they lie, each with a state of its own, merged
// from left to right: so a row's bits depend on neither the threads nor the batch, and few rows over many keys can be
// shared out by segments.
#include <chrono>
#include <vector>

#include "attention_row_sums.h"
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

double arithmetic_peak(const Isa& isa, Dtype dtype, int threads) {
  const AttentionKernels& kernels = attention_kernels_of(isa, dtype);
  const auto start = std::chrono::steady_clock::now();
  std::vector<double> flops((size_t)threads);
  parallel_for(threads, threads, [&](int64_t i) {
    double sink = 0;
    flops[(size_t)i] = kernels.peak(20'000'000, &sink);
  });
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  double all = 0;
  for (const double f : flops) all += f;
  return all / took.count();
}

void attention_keep(double drop, uint64_t seed, int64_t batch, int64_t head, int64_t query, int64_t first, int64_t keys,
                    uint8_t* keep) {
  uint32_t dice[2];
  throw_dice(seed, batch, head, query, dice);
  for (int64_t j = 0; j < keys; ++j) {
    const uint32_t at = (uint32_t)(first + j) * kDieStep + dice[0];
    keep[j] = attention_die(at, dice[1]) >= drop_below(drop);
  }
}

namespace {

constexpr int64_t kTiles = 16;
constexpr int64_t kKeySegment = 4096;

// Sizes that follow from the problem, the same for all its items.
struct Plan {
  const AttentionProblem& p;
  const AttentionKernels& kernels;
  int64_t chunk;  // keys that meet a tile at a time
  int64_t width;  // of a row of O: dv filled up to whole vectors

  explicit Plan(const AttentionProblem& problem)
      : p(problem), kernels(attention_kernels_of(*problem.isa, problem.dtype)) {
    // K and V of a chunk take 128 KiB each at most: half of a second-level cache with the scores beside them.
    const int64_t fits = (128 << 10) / (kernels.size * std::max<int64_t>(1, std::max(p.d, p.dv)));
    chunk = std::clamp(fits / kernels.group * kernels.group, kernels.group, kMostKeys);
    width = round_up(std::max<int64_t>(1, p.dv), kernels.width);
  }
};

struct Work {  // rows [first, first + count) of a head of k
  int64_t batch, group, first, count, segments;
};

// The long ones first: in a causal triangle these are the last rows.
std::vector<Work> works(const AttentionProblem& p) {
  std::vector<Work> all;
  constexpr int64_t most = kTile * kTiles;
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t g = 0; g < p.groups; ++g) {
      const HeadRows rows(p, b, g);
      const int64_t segments = std::max<int64_t>(1, (rows.keys() + kKeySegment - 1) / kKeySegment);
      for (int64_t first = (rows.count() - 1) / most * most; rows.count() && first >= 0; first -= most)
        all.push_back({b, g, first, std::min(rows.count() - first, most), segments});
    }
  return all;
}

// One item: tiles of one head of k, over one segment after the other.
class Item {
 public:
  Item(const Plan& plan, const Work& work)
      : plan_(plan),
        p_(plan.p),
        kernels_(plan.kernels),
        work_(work),
        rows_(p_, work.batch, work.group),
        streamed_(work.count <= kTile) {
    const int64_t size = kernels_.size, count = work.count,
                  panels = round_up(std::max<int64_t>(p_.dv, 1), kernels_.panel);
    const int64_t k_bytes = (streamed_ ? std::max(kernels_.panel * p_.d, kGrain * panels) : plan.chunk * p_.d) * size;
    const int64_t parts[] = {count * p_.d * size,
                             count * plan.width * size,
                             count * plan.width * size,
                             k_bytes,
                             streamed_ ? 0 : plan.chunk * panels * size,
                             kTile * plan.chunk * size,
                             kTile * kMostKeys,
                             count * (int64_t)sizeof(AttentionState),
                             count * (int64_t)sizeof(AttentionState),
                             2 * kMostKeys * (int64_t)sizeof(const char*)};
    int64_t bytes = 0;
    for (const int64_t part : parts) bytes += round_up(part, 64);
    Carved scratch{thread_scratch(bytes)};
    q_ = scratch.take(parts[0]), o_ = scratch.take(parts[1]), part_o_ = scratch.take(parts[2]);
    k_ = scratch.take(parts[3]), v_ = scratch.take(parts[4]), scores_ = scratch.take(parts[5]);
    live_ = scratch.take<uint8_t>(parts[6]);
    states_ = scratch.take<AttentionState>(parts[7]), part_states_ = scratch.take<AttentionState>(parts[8]);
    key_rows_ = scratch.take<const char*>(parts[9]), value_rows_ = key_rows_ + kMostKeys;
    for (int64_t r = 0; r < count; ++r)
      kernels_.pack_q(rows_.at(p_.q, work.first + r), p_.q.strides[3], p_.d, q_ + r * p_.d * size);
  }

  // All keys, and the results put down.
  void whole() {
    clear(states_, o_);
    if (p_.last_key) {
      over(p_.first_key, std::min(rows_.keys(), p_.last_key), states_, o_);
      return finish();
    }
    for (int64_t s = 0; s < work_.segments; ++s) {
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
  // Super-tiles [from, to) into the sums of the problem, or of `own`.
  void add_tiles(int64_t from, int64_t to, SumsBlock* own) {
    const double by = rows_.v_scale() / (1 - p_.drop);
    for (int64_t t = from; t < to; ++t) {
      const int64_t key = t * kSuperTile, n = std::min(rows_.keys() - key, kSuperTile);
      if (!rows_.near(work_.first, work_.count, key, n)) continue;
      clear(states_, o_);
      over(key, key + n, states_, o_);
      for (int64_t r = 0; r < work_.count; ++r)
        kernels_.sums_add(own ? own->at(r) : sums_of(p_, rows_, work_.first + r), states_[r].pivot, states_[r].sum,
                          o_ + r * plan_.width * kernels_.size, by, p_.dv);
    }
  }
  // The sums put down as results.
  void read(SumsBlock& sums) {
    std::fill(o_, o_ + plan_.width * kernels_.size, 0);
    if (p_.sinks)
      for (int64_t r = 0; r < work_.count; ++r) {
        const double sink = p_.sinks[rows_.head(work_.first + r)];
        kernels_.sums_add(sums.at(r), sink, sink == kEmpty ? 0 : 1, o_, 1, p_.dv);
      }
    for (int64_t r = 0; r < work_.count; ++r) {
      double lse = 0;
      kernels_.sums_read(sums.at(r), p_.dv, o_, &lse);
      put(work_.first + r, o_, 1, lse);
    }
  }
  // One segment, its states and rows of O left at `states` and `o`.
  void part(int64_t segment, AttentionState* states, char* o) {
    clear(states, o);
    over(segment, states, o);
  }
  // What part() left of all segments, merged and put down.
  void join(const AttentionState* states, const char* o) {
    const int64_t bytes = work_.count * plan_.width * kernels_.size;
    std::copy(states, states + work_.count, states_);
    std::copy(o, o + bytes, o_);
    for (int64_t s = 1; s < work_.segments; ++s) add(states + s * work_.count, o + s * bytes);
    finish();
  }

 private:
  void clear(AttentionState* states, char* o) const {
    std::fill(states, states + work_.count, AttentionState{kEmpty, 0});
    std::fill(o, o + work_.count * plan_.width * kernels_.size, 0);
  }
  void add(const AttentionState* states, const char* o) {
    const int64_t stride = plan_.width * kernels_.size;
    for (int64_t r = 0; r < work_.count; ++r)
      kernels_.merge(states_ + r, o_ + r * stride, states + r, o + r * stride, plan_.width);
  }

  void over(int64_t segment, AttentionState* states, char* o) {
    over(segment * kKeySegment, std::min(rows_.keys(), (segment + 1) * kKeySegment), states, o);
  }
  void over(int64_t first, int64_t end, AttentionState* states, char* o) {
    for (int64_t key = first; key < end; key += plan_.chunk) chunk(key, std::min(plan_.chunk, end - key), states, o);
  }

  void chunk(int64_t key, int64_t n, AttentionState* states, char* o) {
    bool met = false, finite = true;
    for (int64_t t = 0; t < work_.count; t += kTile) {
      const int64_t count = std::min(kTile, work_.count - t);
      AttentionRow rules[kTile];
      AttentionBlock b{};
      if (!rows_.near(work_.first + t, count, key, n)) continue;
      if (!rows_.rules(work_.first + t, count, key, n, rules, b.from, b.to)) continue;
      b.from = b.from / kernels_.group * kernels_.group;
      const AttentionKeys keys{key_rows_, p_.k.strides[3]}, values{value_rows_, p_.v.strides[3]};
      const auto pack_k = kernels_.pack_k[(int)p_.stored];
      const auto pack_v = kernels_.pack_v[(int)p_.stored];
      if (!met) {
        rows_.addresses(p_.k, key, n, key_rows_), rows_.addresses(p_.v, key, n, value_rows_);
        if (!streamed_) pack_k(keys, 0, n, p_.d, k_), finite = pack_v(values, 0, n, p_.dv, v_);
        met = true;
      }
      b.count = (int)count, b.d = p_.d, b.dv = p_.dv;
      b.q = q_ + t * p_.d * kernels_.size, b.q_stride = p_.d;
      b.scale = rows_.scale(), b.softcap = p_.softcap, b.rows = rules;
      b.drop = p_.drop > 0 ? drop_below(p_.drop) : 0, b.first_key = p_.origin[3] + key;
      if (streamed_)
        b.keys = keys, b.values = values, b.pack_k = pack_k, b.pack_v = pack_v, b.room = k_;
      else
        b.k = k_, b.v = v_, b.packed = n, b.finite = finite;
      b.live = live_, b.states = states + t;
      b.o = o + t * plan_.width * kernels_.size, b.o_stride = plan_.width;
      b.scores = scores_, b.score_stride = plan_.chunk;
      kernels_.block(b);
    }
  }

  void finish() {
    for (int64_t r = 0; r < work_.count; ++r) {
      const int64_t row = work_.first + r;
      AttentionState s = states_[r];
      if (p_.last_key) {
        raw(r, row, s);
        continue;
      }
      double by = 1 / s.sum, lse = s.pivot + std::log(s.sum);
      if (s.sum == 0) by = 0, lse = kEmpty;
      if (p_.sinks) {
        const double sink = p_.sinks[rows_.head(row)];
        const State all = merge({lse, lse == kEmpty ? 0.0 : 1.0}, {sink, sink == kEmpty ? 0.0 : 1.0});
        const double with = all.s == 0 ? kEmpty : all.m + std::log(all.s);
        if (lse != kEmpty) by *= std::exp(lse - with);
        if (with == -kEmpty) by = std::numeric_limits<double>::quiet_NaN();  // the law of +inf
        lse = with;
      }
      by *= rows_.v_scale() / (1 - p_.drop);
      put(row, o_ + r * plan_.width * kernels_.size, by, lse);
      if (p_.rest.p) put_parts(row, s);
    }
  }
  void put(int64_t row, const char* o, double by, double lse) const {
    (p_.wide ? kernels_.finish_wide : kernels_.finish)(o, by, p_.dv, (char*)rows_.at(p_.o, row), p_.o.strides[3]);
    if (!p_.lse.p || p_.rest.p) return;
    if (lse != lse) lse = std::numeric_limits<double>::quiet_NaN();
    char* at = (char*)rows_.at(p_.lse, row);
    if (p_.single)
      *(float*)at = (float)lse;
    else
      *(double*)at = lse;
  }

  void raw(int64_t r, int64_t row, const AttentionState& s) const {
    kernels_.finish_wide(o_ + r * plan_.width * kernels_.size, rows_.v_scale() / (1 - p_.drop), p_.dv,
                         (char*)rows_.at(p_.o, row), p_.o.strides[3]);
    *(double*)rows_.at(p_.lse, row) = s.pivot;
    *(double*)rows_.at(p_.rest, row) = s.sum;
  }
  void put_parts(int64_t row, const AttentionState& s) const {
    double pivot = s.pivot, sum = s.sum;
    if (p_.sinks && p_.sinks[rows_.head(row)] != kEmpty) {
      const double sink = p_.sinks[rows_.head(row)], m = std::max(pivot, sink);
      sum = (sum == 0 ? 0 : sum * std::exp(pivot - m)) + std::exp(sink - m), pivot = m;
    }
    *(double*)rows_.at(p_.lse, row) = sum == 0 ? kEmpty : pivot;
    *(double*)rows_.at(p_.rest, row) = sum == 0 ? 0 : std::log(sum);
  }

  const Plan& plan_;
  const AttentionProblem& p_;
  const AttentionKernels& kernels_;
  const Work work_;
  const HeadRows rows_;
  const bool streamed_;  // few rows: keys and values are packed piece by piece on the way
  char *q_, *o_, *part_o_, *k_, *v_, *scores_;
  uint8_t* live_;
  AttentionState *states_, *part_states_;
  const char **key_rows_, **value_rows_;
};

// Items, or where these are few parts of their super-tiles: no partition changes a bit.
void run_sums(const Plan& plan, int threads) {
  const AttentionProblem& p = plan.p;
  const std::vector<Work> all = works(p);
  const int64_t items = (int64_t)all.size();
  const bool kept = p.level.p != nullptr;  // by the caller
  const auto tiles_of = [&](const Work& work) { return (p.sequences[work.batch].keys + kSuperTile - 1) / kSuperTile; };
  if (items >= 2 * threads || threads == 1) {
    parallel_for(items, threads, [&](int64_t i) {
      static thread_local SumsBlock sums;
      const Work& work = all[(size_t)i];
      if (!kept) sums.reset(plan.kernels, work.count, p.dv);
      Item item(plan, work);
      item.add_tiles(0, tiles_of(work), kept ? nullptr : &sums);
      if (!kept) item.read(sums);
    });
    return;
  }
  struct Part {
    int64_t item, from, to;
    SumsBlock sums;
  };
  std::vector<Part> parts;
  for (int64_t i = 0; i < items; ++i) {
    const int64_t tiles = std::max<int64_t>(1, tiles_of(all[(size_t)i]));
    const int64_t each = std::max<int64_t>(1, tiles * items / (2 * threads));
    for (int64_t t = 0; t < tiles; t += each) parts.push_back({i, t, std::min(tiles, t + each), {}});
  }
  parallel_for((int64_t)parts.size(), threads, [&](int64_t i) {
    Part& part = parts[(size_t)i];
    const Work& work = all[(size_t)part.item];
    part.sums.reset(plan.kernels, work.count, p.dv);
    Item(plan, work).add_tiles(part.from, std::min(part.to, tiles_of(work)), &part.sums);
  });
  parallel_for(items, threads, [&](int64_t i) {
    const Work& work = all[(size_t)i];
    const HeadRows rows(p, work.batch, work.group);
    SumsBlock* first = nullptr;
    for (Part& part : parts) {
      if (part.item != i) continue;
      for (int64_t r = 0; r < work.count && (kept || first); ++r)
        plan.kernels.sums_merge(kept ? sums_of(p, rows, work.first + r) : first->at(r), part.sums.at(r), p.dv);
      if (!first) first = &part.sums;
    }
    if (!kept) Item(plan, work).read(*first);
  });
}

}  // namespace

void run_attention(const AttentionProblem& problem) {
  const int threads = worth_waking(problem);
  const Plan plan(problem);
  if (problem.any_order) return run_sums(plan, threads);
  const std::vector<Work> all = works(problem);
  const int64_t items = (int64_t)all.size();
  int64_t segments = 0;
  for (const Work& work : all) segments = std::max(segments, work.segments);
  if (items >= 2 * threads || segments <= 1 || threads == 1 || problem.last_key) {
    parallel_for(items, threads, [&](int64_t i) { Item(plan, all[(size_t)i]).whole(); });
    return;
  }
  // Few items over many keys: their segments are shared out.
  struct Part {
    int64_t item, segment, at;  // at: of its first state
  };
  std::vector<Part> parts;
  int64_t states_needed = 0;
  for (int64_t i = 0; i < items; ++i)
    for (int64_t s = 0; s < all[(size_t)i].segments; ++s, states_needed += all[(size_t)i].count)
      parts.push_back({i, s, states_needed});
  const int64_t row = plan.width * plan.kernels.size;
  std::vector<AttentionState> states((size_t)states_needed);
  std::vector<char> o((size_t)(states_needed * row));
  parallel_for((int64_t)parts.size(), threads, [&](int64_t i) {
    const Part& part = parts[(size_t)i];
    Item(plan, all[(size_t)part.item]).part(part.segment, states.data() + part.at, o.data() + part.at * row);
  });
  parallel_for((int64_t)parts.size(), threads, [&](int64_t i) {
    const Part& part = parts[(size_t)i];
    if (part.segment == 0) Item(plan, all[(size_t)part.item]).join(states.data() + part.at, o.data() + part.at * row);
  });
}

}  // namespace osm

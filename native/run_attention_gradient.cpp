// The gradient of attention on the CPU: which tiles meet which keys, in what order, on which thread.
//
// Nothing is added by two threads to one place, and every sum has an order that follows from the sizes alone: dK and dV
// of a chunk of keys are summed over all query rows by whoever has the chunk; dQ is summed over the chunks of a segment
// of kSegmentKeys into a buffer, and the segments' buffers are added from left to right. So the bits depend on no
// thread count. Where heads are many a thread takes all of one head of k; where they are few, segments are shared out.
#include <vector>

#include "attention_plan.h"
#include "pool.h"

namespace osm {
namespace {

constexpr int64_t kSegmentKeys = 1024;
constexpr int64_t kFoldRows = 4096;  // dK and dV are summed over so many query rows, and these sums are summed

struct Plan {
  const AttentionGradientProblem& p;
  const AttentionKernels& kernels;
  int64_t chunk, width, v_width;  // keys that meet a tile at a time; rows of dQ and dK, of dV, in whole vectors
  bool many;                      // heads enough for all threads
  AttentionArray fresh;           // pivots, where p.rest is there

  explicit Plan(const AttentionGradientProblem& problem)
      : p(problem), kernels(attention_kernels_of(*problem.isa, problem.dtype)) {
    // Three packed forms and four sums of a chunk of 32 KiB each stay in a second-level cache.
    const int64_t fits = (32 << 10) / (kernels.size * std::max<int64_t>(1, std::max(p.d, p.dv)));
    chunk = std::clamp(fits / kernels.group * kernels.group, kernels.group, kMostKeys);
    width = round_up(std::max<int64_t>(1, p.d), kernels.width);
    v_width = round_up(std::max<int64_t>(1, p.dv), kernels.width);
    const int64_t heads = p.batch * p.groups;
    many = heads % problem.threads == 0 || heads >= 2 * problem.threads;
  }
};

// What all chunks of a head of k share: log-sum-exps and deltas of its rows.
struct Head {
  const HeadRows rows;
  std::vector<double> lse, rest, d_lse, delta;

  Head(const Plan& plan, int64_t batch, int64_t group) : rows(plan.p, batch, group) {
    const AttentionGradientProblem& p = plan.p;
    const auto n = (size_t)rows.count();
    lse.resize(n), rest.resize(n), d_lse.resize(n), delta.resize(n);
    for (int64_t r = 0; r < rows.count(); ++r) {
      const char* at = rows.at(p.lse, r);
      const double found = p.single ? (double)*(const float*)at : *(const double*)at;
      lse[(size_t)r] = found;
      if (p.rest.p && std::isfinite(found)) {
        const double pivot = *(const double*)rows.at(plan.fresh, r), more = *(const double*)rows.at(p.rest, r);
        // Else the lse is of more keys than these, as where they are shared out: it counts as it is.
        if (std::fabs(pivot + more - found) <= std::fabs(found) * (p.single ? 0x1p-22 : 0x1p-50))
          lse[(size_t)r] = pivot, rest[(size_t)r] = more;
      }
      if (found == kEmpty) continue;  // a row that sees nothing: its gradients are not read
      const double dot =
          plan.kernels.dot(rows.at(p.d_out, r), p.d_out.strides[3], rows.at(p.o, r), p.o.strides[3], p.dv);
      d_lse[(size_t)r] = p.d_lse.p ? *(const double*)rows.at(p.d_lse, r) : 0.0;
      delta[(size_t)r] = dot - d_lse[(size_t)r];
      if (p.delta.p) *(double*)rows.at(p.delta, r) = delta[(size_t)r];
    }
  }
};

// Tiles of one head of k against chunks of its keys, one chunk at a time.
class Chunks {
 public:
  Chunks(const Plan& plan, const Head& head) : plan_(plan), p_(plan.p), kernels_(plan.kernels), head_(head) {
    const int64_t size = kernels_.size, chunk = plan.chunk;
    const int64_t panels = round_up(std::max<int64_t>(1, p_.d), kernels_.panel);
    const int64_t v_panels = round_up(std::max<int64_t>(1, p_.dv), kernels_.panel);
    const int64_t parts[] = {chunk * p_.d * size,
                             chunk * p_.dv * size,
                             chunk * panels * size,
                             kTile * p_.d * size,
                             kTile * p_.dv * size,
                             kTile * panels * size,
                             kTile * v_panels * size,
                             2 * chunk * plan.width * size,
                             2 * chunk * plan.v_width * size,
                             2 * kTile * chunk * size,
                             chunk * size,
                             kTile * kMostKeys,
                             2 * kMostKeys * (int64_t)sizeof(const char*)};
    int64_t bytes = 0;
    for (const int64_t part : parts) bytes += round_up(part, 64);
    Carved scratch{thread_scratch(bytes)};
    k_ = scratch.take(parts[0]), vt_ = scratch.take(parts[1]), kv_ = scratch.take(parts[2]);
    q_ = scratch.take(parts[3]), d_out_ = scratch.take(parts[4]);
    q_panels_ = scratch.take(parts[5]), d_panels_ = scratch.take(parts[6]);
    dk_ = scratch.take(parts[7]), dv_ = scratch.take(parts[8]), scores_ = scratch.take(parts[9]);
    slopes_ = scratch.take(parts[10]), live_ = scratch.take<uint8_t>(parts[11]);
    key_rows_ = scratch.take<const char*>(parts[12]), value_rows_ = key_rows_ + kMostKeys;
  }

  // dQ of the rows added to `dq`, dK and dV of keys [key, key + n) put down.
  void gradients(int64_t key, int64_t n, char* dq) {
    begin(key, n);
    const int64_t rows = head_.rows.count(), fold = (rows + kFoldRows - 1) / kFoldRows;
    const int64_t k_bytes = plan_.chunk * plan_.width * kernels_.size,
                  v_bytes = plan_.chunk * plan_.v_width * kernels_.size;
    const int64_t k_sums = n * plan_.width * kernels_.size, v_sums = n * plan_.v_width * kernels_.size;
    for (int64_t f = 0; f <= (fold > 1); ++f)
      std::memset(dk_ + f * k_bytes, 0, (size_t)k_sums), std::memset(dv_ + f * v_bytes, 0, (size_t)v_sums);
    for (int64_t f = 0; f < fold; ++f) {
      char *dk = f ? dk_ + k_bytes : dk_, *dv = f ? dv_ + v_bytes : dv_;
      const int64_t end = std::min(rows, (f + 1) * kFoldRows);
      for (int64_t t = f * kFoldRows; t < end; t += kTile) tile(t, std::min(kTile, end - t), dk, dv, dq, nullptr);
      if (!f) continue;
      kernels_.add(dk_, dk, n * plan_.width), kernels_.add(dv_, dv, n * plan_.v_width);
      std::memset(dk, 0, (size_t)k_sums), std::memset(dv, 0, (size_t)v_sums);
    }
    head_.rows.addresses(p_.k_grad, key, n, key_rows_), head_.rows.addresses(p_.v_grad, key, n, value_rows_);
    for (int64_t j = 0; j < n; ++j) {
      kernels_.finish(dk_ + j * plan_.width * kernels_.size, head_.rows.scale(), p_.d, (char*)key_rows_[j],
                      p_.k_grad.strides[3]);
      kernels_.finish(dv_ + j * plan_.v_width * kernels_.size, 1, p_.dv, (char*)value_rows_[j], p_.v_grad.strides[3]);
    }
  }
  // The gradient of the bias alone, by rows [first, end) and keys [key, key + n).
  void bias(int64_t key, int64_t n, int64_t first, int64_t end, int64_t first_key) {
    begin(key, n);
    for (int64_t t = first; t < end; t += kTile) {
      const int64_t count = std::min(kTile, end - t);
      char* to[kTile];
      for (int64_t r = 0; r < count; ++r)
        to[r] = (char*)head_.rows.at(p_.bias_grad, t + r) + (first_key + key) * p_.bias_grad.strides[3];
      tile(t, count, nullptr, nullptr, nullptr, to);
    }
  }

 private:
  void begin(int64_t key, int64_t n) { key_ = key, keys_ = n, packed_ = false; }

  void pack() {
    packed_ = true;
    head_.rows.addresses(p_.k, key_, keys_, key_rows_), head_.rows.addresses(p_.v, key_, keys_, value_rows_);
    const AttentionKeys keys{key_rows_, p_.k.strides[3]}, values{value_rows_, p_.v.strides[3]};
    const int stored = (int)p_.stored;
    // V's own panels are not needed, but whether it is finite is: the room of dV's sums takes them.
    finite_ = true;
    for (int64_t j = 0; j < keys_; j += kTile)
      finite_ = kernels_.pack_v[stored](values, j, std::min(kTile, keys_ - j), p_.dv, d_panels_) && finite_;
    finite_ = kernels_.pack_v[stored](keys, 0, keys_, p_.d, kv_) && finite_;
    kernels_.pack_k[stored](keys, 0, keys_, p_.d, k_), kernels_.pack_k[stored](values, 0, keys_, p_.dv, vt_);
  }

  void tile(int64_t t, int64_t count, char* dk, char* dv, char* dq, char* const* d_bias) {
    AttentionRow rules[kTile];
    AttentionGradient b{};
    if (!head_.rows.near(t, count, key_, keys_)) return;
    if (!head_.rows.rules(t, count, key_, keys_, rules, b.from, b.to)) return;
    b.from = b.from / kernels_.group * kernels_.group;
    if (!packed_) pack();
    const int64_t size = kernels_.size;
    const bool finite_q = pack_rows(p_.q, t, count, rules, p_.d, q_, q_panels_);
    const bool finite_d = pack_rows(p_.d_out, t, count, rules, p_.dv, d_out_, d_panels_);
    b.count = (int)count, b.d = p_.d, b.dv = p_.dv;
    b.q = q_, b.q_stride = p_.d, b.d_out = d_out_, b.d_stride = p_.dv;
    b.scale = head_.rows.scale(), b.softcap = p_.softcap, b.rows = rules;
    b.drop = p_.drop > 0 ? drop_below(p_.drop) : 0, b.first_key = p_.origin[3] + key_, b.kept = 1 / (1 - p_.drop);
    b.packed = keys_, b.k = k_, b.vt = vt_, b.kv = kv_, b.q_panels = q_panels_, b.d_panels = d_panels_;
    b.lse = head_.lse.data() + t, b.rest = head_.rest.data() + t, b.delta = head_.delta.data() + t;
    b.d_lse = head_.d_lse.data() + t;
    b.finite = finite_ && finite_q && finite_d;
    b.dk_sum = dk, b.dk_stride = plan_.width, b.dv_sum = dv, b.dv_stride = plan_.v_width;
    b.dq_sum = dq ? dq + t * plan_.width * size : nullptr, b.dq_stride = plan_.width;
    b.d_bias = d_bias, b.d_bias_step = p_.bias_grad.strides[3], b.d_bias_double = p_.bias_grad_double;
    b.scores_only = d_bias != nullptr;
    b.live = live_, b.scores = scores_, b.grads = scores_ + kTile * plan_.chunk * size, b.slopes = slopes_;
    b.score_stride = plan_.chunk;
    kernels_.gradient(b);
  }

  // Rows as they are and in panels, zeros for one that sees nothing here: what it holds is not read. True where all are
  // finite.
  bool pack_rows(const AttentionArray& a, int64_t t, int64_t count, const AttentionRow* rules, int64_t d, char* plain,
                 char* panels) {
    const char* rows[kTile];
    for (int64_t r = 0; r < count; ++r) {
      char* to = plain + r * d * kernels_.size;
      rows[r] = to;
      if (rules[r].lo < rules[r].hi && head_.lse[(size_t)(t + r)] != kEmpty)
        kernels_.pack_q(head_.rows.at(a, t + r), a.strides[3], d, to);
      else
        std::memset(to, 0, (size_t)(d * kernels_.size));
    }
    const Stored plainly = kernels_.size == 8 ? Stored::f64 : Stored::f32;
    return kernels_.pack_v[(int)plainly]({rows, kernels_.size}, 0, count, d, panels);
  }

  const Plan& plan_;
  const AttentionGradientProblem& p_;
  const AttentionKernels& kernels_;
  const Head& head_;
  int64_t key_ = 0, keys_ = 0;
  bool packed_ = false, finite_ = true;
  char *k_, *vt_, *kv_, *q_, *d_out_, *q_panels_, *d_panels_, *dk_, *dv_, *scores_, *slopes_;
  uint8_t* live_;
  const char **key_rows_, **value_rows_;
};

// dQ of a head's rows, put down from its sums.
void finish_queries(const Plan& plan, const Head& head, const char* dq, int64_t from, int64_t to) {
  for (int64_t r = from; r < to; ++r)
    plan.kernels.finish(dq + r * plan.width * plan.kernels.size, head.rows.scale(), plan.p.d,
                        (char*)head.rows.at(plan.p.q_grad, r), plan.p.q_grad.strides[3]);
}

void one_segment(const Plan& plan, const Head& head, int64_t segment, char* dq) {
  Chunks chunks(plan, head);
  const int64_t end = std::min(head.rows.keys(), (segment + 1) * kSegmentKeys);
  for (int64_t key = segment * kSegmentKeys; key < end; key += plan.chunk)
    chunks.gradients(key, std::min(plan.chunk, end - key), dq);
}

// All of a head: `threads` segments at a time, each with a dQ of its own.
void whole_head(const Plan& plan, int64_t batch, int64_t group, int threads) {
  const Head head(plan, batch, group);
  const int64_t segments = (head.rows.keys() + kSegmentKeys - 1) / kSegmentKeys;
  const int64_t numbers = head.rows.count() * plan.width, bytes = numbers * plan.kernels.size;
  std::vector<char> dq((size_t)bytes);
  std::vector<std::vector<char>> parts((size_t)std::min<int64_t>(threads, segments));
  for (int64_t s = 0; s < segments; s += threads) {
    const int64_t here = std::min<int64_t>(threads, segments - s);
    const int64_t own = s == 0;  // the very first goes where the sum is made
    for (int64_t i = own; i < here; ++i) parts[(size_t)i].assign((size_t)bytes, 0);
    const auto work = [&](int64_t i) { one_segment(plan, head, s + i, i < own ? dq.data() : parts[(size_t)i].data()); };
    if (threads == 1)
      work(0);
    else
      parallel_for(here, threads, work);
    for (int64_t i = own; i < here; ++i) plan.kernels.add(dq.data(), parts[(size_t)i].data(), numbers);
  }
  finish_queries(plan, head, dq.data(), 0, head.rows.count());
}

// The gradient of the bias. Heads and sequences that share its rows are one item, one after the other; its chunks of
// keys are items of their own, where the bias tells keys apart.
void bias_gradient(const Plan& plan) {
  const AttentionGradientProblem& p = plan.p;
  const int64_t* strides = p.bias_grad.strides;
  int64_t longest = 0;
  for (int64_t b = 0; b < p.batch; ++b) longest = std::max(longest, p.sequences[b].keys);
  const int64_t chunks = (longest + plan.chunk - 1) / plan.chunk;
  const int64_t batches = strides[0] ? p.batch : 1, heads = strides[1] ? p.heads : 1, pieces = strides[3] ? chunks : 1;
  parallel_for(batches * heads * pieces, p.threads, [&](int64_t i) {
    const int64_t piece = i % pieces, h0 = i / pieces % heads, b0 = i / pieces / heads;
    for (int64_t b = b0; b < (strides[0] ? b0 + 1 : p.batch); ++b)
      for (int64_t h = h0; h < (strides[1] ? h0 + 1 : p.heads); ++h) {
        const int64_t share = p.heads / p.groups, queries = p.sequences[b].queries, first = h % share * queries;
        const Head head(plan, b, h / share);
        Chunks tiles(plan, head);
        for (int64_t c = strides[3] ? piece : 0; c < (strides[3] ? piece + 1 : chunks); ++c) {
          const int64_t key = c * plan.chunk, n = std::min(plan.chunk, head.rows.keys() - key);
          if (n > 0) tiles.bias(key, n, first, first + queries, p.sequences[b].key);
        }
      }
  });
}

}  // namespace

namespace {

// Whether an lse is so great that its rounding would show in the weights.
bool great(const AttentionGradientProblem& p) {
  const double much = p.single ? 64 : 0x1p20;
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t g = 0; g < p.groups; ++g) {
      const HeadRows rows(p, b, g);
      for (int64_t r = 0; r < rows.count(); ++r) {
        const char* at = rows.at(p.lse, r);
        const double lse = std::fabs(p.single ? (double)*(const float*)at : *(const double*)at);
        if (lse > much && std::isfinite(lse)) return true;
      }
    }
  return false;
}

}  // namespace

void run_attention_gradient(const AttentionGradientProblem& given) {
  AttentionGradientProblem problem = given;
  problem.threads = worth_waking(given);
  std::vector<double> parts;
  AttentionArray fresh;
  if (great(given)) {
    // The statistics anew, without values: pivots and, beside them, logs of sums.
    int64_t queries = 0;
    for (int64_t b = 0; b < given.batch; ++b)
      queries = std::max(queries, given.sequences[b].query + given.sequences[b].queries);
    const int64_t all = given.batch * given.heads * queries;
    parts.resize((size_t)(2 * all));
    AttentionProblem forward = given;
    forward.dv = 0, forward.drop = 0;
    fresh.p = (const char*)parts.data();
    fresh.strides[0] = 8 * given.heads * queries, fresh.strides[1] = 8 * queries, fresh.strides[2] = 8;
    forward.lse = forward.rest = problem.rest = fresh;
    forward.rest.p = problem.rest.p = (const char*)(parts.data() + all);
    run_attention(forward);
  }
  Plan plan(problem);
  plan.fresh = fresh;
  const int64_t heads = problem.batch * problem.groups;
  if (plan.many)
    parallel_for(heads, problem.threads,
                 [&](int64_t i) { whole_head(plan, i / problem.groups, i % problem.groups, 1); });
  else
    for (int64_t i = 0; i < heads; ++i) whole_head(plan, i / problem.groups, i % problem.groups, problem.threads);
  problem.delta.p = nullptr;  // is written; the items of the next pass share heads, and would write it again
  if (problem.bias_grad.p) bias_gradient(plan);
}

}  // namespace osm

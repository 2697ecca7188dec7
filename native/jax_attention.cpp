// Attention's handlers for XLA: see jax_ffi.cpp.
#ifdef OSM_JAX_FFI

#include "attention.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "jax_ffi.h"

using namespace osm_jax;

namespace {

// What operands follow q, k and v (and, backward, the outputs and their gradients), in this order.
enum Present : int64_t { kBias = 1, kSinks = 2, kMask = 4, kSlopes = 8, kDropout = 16 };

struct AttentionOptions {
  int64_t present;
  bool bshd;
  double scale, softcap;
  bool lower_right;
  int64_t left, right;
  double drop;
  int64_t threads;
};

// (batch, heads, length, features) of either layout.
osm::AttentionArray four(const Buffer& b, bool bshd) {
  osm::AttentionArray a;
  a.p = data(b);
  dense_strides(b, a.strides);
  if (bshd) std::swap(a.strides[1], a.strides[2]);
  return a;
}

void advance(osm::AttentionArray& a, int64_t batches) {
  if (a.p) a.p += a.strides[0] * batches;
}

// A call, cut into runs of sequences: those that share their sinks and seed and whose numbers follow each other.
class AttentionCall {
 public:
  osm::AttentionGradientProblem p;
  int64_t batch = 0, heads = 0, queries = 0, keys = 0;
  int64_t sink_rows = 0;  // 0: none
  Doubles sinks;

  AttentionCall(const Buffer& q, const Buffer& k, const Buffer& v, const ffi::RemainingArgs& rest, size_t next,
                const AttentionOptions& o)
      : p{}, drop_(o.drop) {
    const int length = o.bshd ? 1 : 2;
    p.dtype = dtype_or_throw(q), p.stored = (osm::Stored)(int)p.dtype, p.isa = chosen_isa, p.threads = (int)o.threads;
    batch = q.dimensions()[0], heads = q.dimensions()[3 - length];
    queries = q.dimensions()[length], keys = k.dimensions()[length];
    p.heads = heads, p.groups = k.dimensions()[3 - length];
    p.d = q.dimensions()[3], p.dv = v.dimensions()[3];
    p.q = four(q, o.bshd), p.k = four(k, o.bshd), p.v = four(v, o.bshd);
    p.scale = o.scale, p.softcap = o.softcap, p.lower_right = o.lower_right;
    if (o.left >= 0) p.left = o.left;
    if (o.right >= 0) p.right = o.right;
    if (o.present & kBias) p.bias = four(argument(rest, next++), false);
    if (o.present & kSinks) {
      const Buffer given = argument(rest, next++);  // (1 or batch, heads)
      sinks = Doubles(given), sink_rows = given.dimensions()[0];
    }
    if (o.present & kMask) p.mask = four(argument(rest, next++), false);
    if (o.present & kSlopes) slopes_ = Doubles(argument(rest, next++));  // (batch, heads)
    if (o.present & kDropout) {
      numbers_ = (const uint32_t*)data(argument(rest, next));        // (batch, 3): seed, high half first; number
      heads_from_ = (const int32_t*)data(argument(rest, next + 1));  // (heads)
    }
    sequences_.assign((size_t)batch, {0, queries, 0, keys});
  }

  template <class F>
  void each_run(const F& run) {
    const osm::AttentionGradientProblem whole = p;
    for (int64_t from = 0; from < batch;) {
      int64_t to = from + 1;
      while (to < batch && sink_rows <= 1 && follows(to)) ++to;
      p.batch = to - from;
      p.sequences = sequences_.data() + from;
      if (sink_rows) p.sinks = sinks.p + (sink_rows > 1 ? from * heads : 0);
      if (slopes_.p) p.slopes = slopes_.p + from * heads;
      if (numbers_ && drop_ > 0) {
        const uint32_t* n = numbers_ + from * 3;
        p.drop = drop_, p.seed = (uint64_t)n[0] << 32 | n[1];
        p.origin[0] = n[2], p.origin[1] = heads ? heads_from_[0] : 0;
      }
      run();
      for (osm::AttentionArray osm::AttentionGradientProblem::* a : kArrays) advance(p.*a, to - from);
      from = to;
    }
    p = whole;
  }

 private:
  double drop_;
  Doubles slopes_;
  const uint32_t* numbers_ = nullptr;
  const int32_t* heads_from_ = nullptr;
  std::vector<osm::AttentionSequence> sequences_;

  using Member = osm::AttentionArray osm::AttentionGradientProblem::*;
  static constexpr Member kArrays[] = {
      (Member)&osm::AttentionProblem::q,      (Member)&osm::AttentionProblem::k,
      (Member)&osm::AttentionProblem::v,      (Member)&osm::AttentionProblem::o,
      (Member)&osm::AttentionProblem::mask,   (Member)&osm::AttentionProblem::bias,
      (Member)&osm::AttentionProblem::lse,    &osm::AttentionGradientProblem::d_out,
      &osm::AttentionGradientProblem::d_lse,  &osm::AttentionGradientProblem::q_grad,
      &osm::AttentionGradientProblem::k_grad, &osm::AttentionGradientProblem::v_grad,
      &osm::AttentionGradientProblem::delta,  &osm::AttentionGradientProblem::bias_grad,
  };

  // Whether a sequence's dropout goes on where that of the one before it ended.
  bool follows(int64_t b) const {
    if (!numbers_ || drop_ <= 0) return true;
    const uint32_t *n = numbers_ + b * 3, *before = n - 3;
    return n[0] == before[0] && n[1] == before[1] && n[2] == before[2] + 1;
  }
};

ffi::Error attention_impl(Buffer q, Buffer k, Buffer v, ffi::RemainingArgs rest, ffi::Result<Buffer> out,
                          ffi::Result<Buffer> lse, int64_t present, int64_t bshd, double scale, double softcap,
                          int64_t lower_right, int64_t left, int64_t right, double drop, int64_t threads) {
  return guarded([&] {
    AttentionCall call(q, k, v, rest, 0,
                       {present, bshd != 0, scale, softcap, lower_right != 0, left, right, drop, threads});
    if (!count(*lse)) return;
    call.p.o = four(*out, bshd != 0);
    call.p.lse = four(*lse, bshd != 0);
    call.p.single = !wide(*lse);
    call.each_run([&] { osm::run_attention(call.p); });
  });
}

// -sum(share of the sink * delta): its value is 0, so only what it takes away counts. One a row of sinks and head.
void sinks_gradient(const AttentionCall& call, const std::vector<double>& lse, const std::vector<double>& delta,
                    const Buffer& to) {
  std::vector<double> made((size_t)count(to));
  for (int64_t b = 0; b < call.batch; ++b)
    for (int64_t h = 0; h < call.heads; ++h) {
      const size_t at = (size_t)((call.sink_rows > 1 ? b * call.heads : 0) + h);
      const double sink = call.sinks.p[at];
      if (sink == -INFINITY) continue;
      const size_t first = (size_t)((b * call.heads + h) * call.queries);
      for (size_t i = first; i < first + (size_t)call.queries; ++i)
        if (lse[i] != -INFINITY) made[at] -= std::exp(sink - lse[i]) * delta[i];
    }
  narrow(made, to);
}

// Numbers a query, as doubles in the order (batch, heads, queries).
std::vector<double> by_heads(const Buffer& b, const AttentionCall& call, bool bshd) {
  std::vector<double> given = doubles(b);
  if (!bshd) return given;
  std::vector<double> made(given.size());
  size_t at = 0;
  for (int64_t n = 0; n < call.batch; ++n)
    for (int64_t h = 0; h < call.heads; ++h)
      for (int64_t i = 0; i < call.queries; ++i) made[at++] = given[(size_t)((n * call.queries + i) * call.heads + h)];
  return made;
}

osm::AttentionArray of_queries(std::vector<double>& numbers, const AttentionCall& call) {
  osm::AttentionArray a;
  a.p = (const char*)numbers.data();
  a.strides[2] = sizeof(double), a.strides[1] = a.strides[2] * call.queries, a.strides[0] = a.strides[1] * call.heads;
  return a;
}

ffi::Error attention_grad_impl(Buffer d_out, Buffer d_lse, Buffer q, Buffer k, Buffer v, ffi::RemainingArgs rest,
                               ffi::RemainingRets made, int64_t present, int64_t bshd, double scale, double softcap,
                               int64_t lower_right, int64_t left, int64_t right, double drop, int64_t of_bias,
                               int64_t threads) {
  return guarded([&] {
    const bool turned = bshd != 0;
    AttentionCall call(q, k, v, rest, 2,
                       {present, turned, scale, softcap, lower_right != 0, left, right, drop, threads});
    const Buffer out = argument(rest, 0), lse = argument(rest, 1);
    for (size_t i = 0; i < made.size(); ++i) {
      const Buffer to = result(made, i);
      if (to.size_bytes()) std::memset(to.untyped_data(), 0, to.size_bytes());
    }
    if (!call.batch || !call.heads) return;
    osm::AttentionGradientProblem& p = call.p;
    p.o = four(out, turned), p.lse = four(lse, turned), p.single = !wide(lse);
    p.d_out = four(d_out, turned);
    std::vector<double> of_lse = by_heads(d_lse, call, turned), delta(of_lse.size());
    p.d_lse = of_queries(of_lse, call), p.delta = of_queries(delta, call);
    p.q_grad = four(result(made, 0), turned), p.k_grad = four(result(made, 1), turned);
    p.v_grad = four(result(made, 2), turned);
    size_t next = 3;
    std::vector<double> sums;
    std::optional<Buffer> bias;
    if (of_bias) {
      bias = result(made, next++);
      p.bias_grad = four(*bias, false);
      const auto dims = bias->dimensions();
      // Where it is summed over an axis, in double.
      p.bias_grad_double =
          wide(*bias) || dims[0] * dims[1] * dims[2] * dims[3] != call.batch * call.heads * call.queries * call.keys;
      if (p.bias_grad_double && !wide(*bias)) {
        sums.assign((size_t)count(*bias), 0);
        p.bias_grad.p = (const char*)sums.data();
        for (int64_t& stride : p.bias_grad.strides) stride *= 2;
      }
    }
    call.each_run([&] { osm::run_attention_gradient(p); });
    if (bias && !sums.empty()) narrow(sums, *bias);
    if (present & kSinks) sinks_gradient(call, by_heads(lse, call, turned), delta, result(made, next));
  });
}

#define OSM_ATTENTION_ATTRIBUTES    \
  .Attr<int64_t>("present")         \
      .Attr<int64_t>("bshd")        \
      .Attr<double>("scale")        \
      .Attr<double>("softcap")      \
      .Attr<int64_t>("lower_right") \
      .Attr<int64_t>("left")        \
      .Attr<int64_t>("right")       \
      .Attr<double>("drop")

XLA_FFI_DEFINE_HANDLER(forward_handler, attention_impl,
                       ffi::Ffi::Bind()
                           .Arg<Buffer>()
                           .Arg<Buffer>()
                           .Arg<Buffer>()
                           .RemainingArgs()
                           .Ret<Buffer>()
                           .Ret<Buffer>() OSM_ATTENTION_ATTRIBUTES.Attr<int64_t>("threads"));
XLA_FFI_DEFINE_HANDLER(backward_handler, attention_grad_impl,
                       ffi::Ffi::Bind()
                           .Arg<Buffer>()
                           .Arg<Buffer>()
                           .Arg<Buffer>()
                           .Arg<Buffer>()
                           .Arg<Buffer>()
                           .RemainingArgs()
                           .RemainingRets() OSM_ATTENTION_ATTRIBUTES.Attr<int64_t>("of_bias")
                           .Attr<int64_t>("threads"));

}  // namespace

namespace osm_jax {
XLA_FFI_Handler* attention_handler() { return forward_handler; }
XLA_FFI_Handler* attention_grad_handler() { return backward_handler; }
}  // namespace osm_jax

#endif

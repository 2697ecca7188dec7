// XLA's way into the core: handlers that jaxlib calls with the buffers of a compiled computation. Built where jaxlib's
// headers were found; elsewhere the module offers no handlers and says so.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "bind.h"

namespace nb = nanobind;

#ifndef OSM_JAX_FFI

void bind_jax(nb::module_& m) {
  m.def("jax_targets", [](const Plan&) { return nb::dict(); });
}

#else

#include <cmath>
#include <cstring>
#include <exception>
#include <limits>
#include <optional>
#include <stdexcept>
#include <vector>

#include "attention.h"
#include "driver.h"
#include "losses.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

using Buffer = ffi::AnyBuffer;

// How calls are carried out, but for the threads, which each call says: set when the handlers are registered.
const osm::Isa* chosen_isa = nullptr;
int chosen_algorithm = osm::kAuto;
// Up to so many elements whole adjacent rows go to the kernel with no planning.
constexpr int64_t kSmall = 16384;

std::optional<osm::Dtype> dtype_of(const Buffer& b) {
  switch (b.element_type()) {
    case ffi::F32:
      return osm::Dtype::f32;
    case ffi::F64:
      return osm::Dtype::f64;
    case ffi::F16:
      return osm::Dtype::f16;
    case ffi::BF16:
      return osm::Dtype::bf16;
    default:
      return std::nullopt;
  }
}

osm::Dtype dtype_or_throw(const Buffer& b) {
  const auto dtype = dtype_of(b);
  if (!dtype) throw std::invalid_argument("an operand of float64, float32, float16 or bfloat16 would do");
  return *dtype;
}

bool wide(const Buffer& b) { return b.element_type() == ffi::F64; }
const char* data(const Buffer& b) { return (const char*)b.untyped_data(); }
int64_t rank(const Buffer& b) { return (int64_t)b.dimensions().size(); }
int64_t count(const Buffer& b) { return (int64_t)b.element_count(); }

// Strides of a dense array, in bytes; 0 along axes of length 1, which is what broadcasting asks for.
void dense_strides(const Buffer& b, int64_t* to) {
  const auto dims = b.dimensions();
  int64_t stride = (int64_t)ffi::ByteWidth(b.element_type());
  for (int64_t d = rank(b); d-- > 0;) {
    to[d] = dims[d] == 1 ? 0 : stride;
    stride *= dims[d];
  }
}

std::vector<double> doubles(const Buffer& b) {
  std::vector<double> made((size_t)count(b));
  for (size_t i = 0; i < made.size(); ++i)
    made[i] = wide(b) ? ((const double*)data(b))[i] : (double)((const float*)data(b))[i];
  return made;
}

// Numbers as doubles: those that already are stay where they lie.
struct Doubles {
  std::vector<double> made;
  const double* p = nullptr;
  Doubles() = default;
  explicit Doubles(const Buffer& b) {
    if (wide(b)) {
      p = (const double*)data(b);
    } else {
      made = doubles(b);
      p = made.data();
    }
  }
};

void narrow(const std::vector<double>& from, const Buffer& to) {
  for (size_t i = 0; i < from.size(); ++i)
    if (wide(to))
      ((double*)to.untyped_data())[i] = from[i];
    else
      ((float*)to.untyped_data())[i] = (float)from[i];
}

template <class F>
ffi::Error guarded(const F& work) {
  try {
    work();
    return ffi::Error::Success();
  } catch (const std::invalid_argument& error) {
    return ffi::Error::InvalidArgument(std::string("online_softmax: ") + error.what());
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("online_softmax: ") + error.what());
  }
}

Buffer argument(const ffi::RemainingArgs& all, size_t i) {
  const auto found = all.get<Buffer>(i);
  if (!found) throw std::invalid_argument("an operand is missing");
  return *found;
}

Buffer result(const ffi::RemainingRets& all, size_t i) {
  auto found = all.get<Buffer>(i);
  if (!found) throw std::invalid_argument("a result is missing");
  return **found;
}

// ---- softmax, log_softmax, logsumexp

void small_rows(const osm::Problem& p, const char* x, const Buffer& y, int64_t rows, int64_t cols) {
  if (p.op != osm::Op::lse) {
    osm::small_rows(*p.isa, p.op, p.dtype, x, (char*)y.untyped_data(), rows, cols);
    return;
  }
  const int64_t stride = cols * (int64_t)osm::dtype_size(p.dtype);
  for (int64_t r = 0; r < rows; ++r) {
    const double lse = osm::small_lse(*p.isa, p.dtype, x + r * stride, cols);
    if (wide(y))
      ((double*)y.untyped_data())[r] = lse;
    else
      ((float*)y.untyped_data())[r] = (float)lse;
  }
}

void run_rows(const Buffer& x, const ffi::RemainingArgs& rest, const Buffer& y, int64_t op, int64_t reduced,
              int64_t threads) {
  osm::Problem p;
  p.op = (osm::Op)op, p.dtype = dtype_or_throw(x), p.isa = chosen_isa, p.algorithm = chosen_algorithm;
  p.threads = (int)threads, p.ndim = (int)rank(x), p.reduced = (uint64_t)reduced;
  if (p.ndim > osm::kMaxDims) throw std::invalid_argument("more than 64 axes");
  const bool map = p.op != osm::Op::lse;
  const int64_t elements = count(x), cols = p.ndim ? x.dimensions().back() : 1;
  if (map && !elements) return;
  if (elements && !rest.size() && p.algorithm == osm::kAuto && elements <= kSmall &&
      p.reduced == uint64_t{1} << (p.ndim - 1)) {
    small_rows(p, data(x), y, elements / cols, cols);
    return;
  }
  for (int d = 0; d < p.ndim; ++d) p.shape[d] = x.dimensions()[(size_t)d];
  dense_strides(x, p.x_strides);
  p.x = data(x);
  if (map) {
    p.y = (char*)y.untyped_data();
    dense_strides(y, p.y_strides);
  } else {
    p.first = y.untyped_data();
    p.single = !wide(y);
  }
  if (rest.size()) {
    const Buffer where = argument(rest, 0);
    p.where = data(where);
    dense_strides(where, p.where_strides);
  }
  osm::run(p);
}

ffi::Error rows_impl(Buffer x, ffi::RemainingArgs rest, ffi::Result<Buffer> y, int64_t op, int64_t reduced,
                     int64_t threads) {
  return guarded([&] { run_rows(x, rest, *y, op, reduced, threads); });
}

// ---- cross-entropy: classes last, one target a row

struct LossOptions {
  double sharp, uniform, z_loss, softcap, inverse_temperature;
  int64_t ignore_index, threads;
};

struct LossCall {
  osm::LossProblem p;
  std::vector<int64_t> targets;
  std::vector<char> bad;  // rows whose target is no class
  Doubles weights;
  int64_t rows = 0;

  LossCall(const Buffer& logits, const Buffer& target, const ffi::RemainingArgs& rest, const LossOptions& o) {
    p.dtype = dtype_or_throw(logits), p.isa = chosen_isa, p.threads = (int)o.threads;
    const int64_t classes = logits.dimensions().back();
    rows = count(target);
    p.ndim = 2, p.axis = 1, p.shape[0] = rows, p.shape[1] = classes;
    const int64_t size = (int64_t)osm::dtype_size(p.dtype);
    p.x = data(logits), p.x_strides[0] = classes * size, p.x_strides[1] = size;
    p.sharp = o.sharp, p.uniform = o.uniform, p.z_loss = o.z_loss, p.softcap = o.softcap;
    p.inverse_temperature = o.inverse_temperature;
    targets.resize((size_t)rows), bad.resize((size_t)rows);
    const bool longs = target.element_type() == ffi::S64;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t t = longs ? ((const int64_t*)data(target))[r] : ((const int32_t*)data(target))[r];
      const bool ignored = t == o.ignore_index;
      bad[(size_t)r] = !ignored && (t < 0 || t >= classes);
      targets[(size_t)r] = ignored ? osm::kIgnored : bad[(size_t)r] ? osm::kNoTarget : t;
    }
    p.target = targets.data();
    if (rest.size()) weights = Doubles(argument(rest, 0)), p.class_weights = weights.p;
  }
};

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

ffi::Error loss_impl(Buffer logits, Buffer target, ffi::RemainingArgs rest, ffi::Result<Buffer> loss,
                     ffi::Result<Buffer> lse, double sharp, double uniform, double z_loss, double softcap,
                     double inverse_temperature, int64_t ignore_index, int64_t threads) {
  return guarded([&] {
    LossCall call(logits, target, rest, {sharp, uniform, z_loss, softcap, inverse_temperature, ignore_index, threads});
    if (!call.rows) return;
    std::vector<double> losses((size_t)call.rows), lses((size_t)call.rows);
    call.p.loss = losses.data(), call.p.lse = lses.data(), call.p.ignored_too = true;
    osm::run_losses(call.p);
    for (size_t r = 0; r < call.bad.size(); ++r)
      if (call.bad[r]) losses[r] = kNan;
    narrow(losses, *loss);
    narrow(lses, *lse);
  });
}

ffi::Error loss_grad_impl(Buffer d_loss, Buffer d_lse, Buffer logits, Buffer target, ffi::RemainingArgs rest,
                          ffi::Result<Buffer> gradient, double sharp, double uniform, double z_loss, double softcap,
                          double inverse_temperature, int64_t ignore_index, int64_t threads) {
  return guarded([&] {
    LossCall call(logits, target, rest, {sharp, uniform, z_loss, softcap, inverse_temperature, ignore_index, threads});
    if (!call.rows) return;
    osm::LossProblem& p = call.p;
    std::vector<double> of_loss = doubles(d_loss);
    const Doubles of_lse(d_lse);
    for (size_t r = 0; r < call.bad.size(); ++r)
      if (call.bad[r]) of_loss[r] = kNan;
    p.d_loss = of_loss.data(), p.d_loss_each = true, p.ignored_too = true;
    p.d_lse = of_lse.p;
    p.y = (char*)gradient->untyped_data(), p.y_strides[0] = p.x_strides[0], p.y_strides[1] = p.x_strides[1];
    osm::run_losses(p);
  });
}

// ---- attention

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

#define OSM_LOSS_ATTRIBUTES                \
  .Attr<double>("sharp")                   \
      .Attr<double>("uniform")             \
      .Attr<double>("z_loss")              \
      .Attr<double>("softcap")             \
      .Attr<double>("inverse_temperature") \
      .Attr<int64_t>("ignore_index")       \
      .Attr<int64_t>("threads")
#define OSM_ATTENTION_ATTRIBUTES    \
  .Attr<int64_t>("present")         \
      .Attr<int64_t>("bshd")        \
      .Attr<double>("scale")        \
      .Attr<double>("softcap")      \
      .Attr<int64_t>("lower_right") \
      .Attr<int64_t>("left")        \
      .Attr<int64_t>("right")       \
      .Attr<double>("drop")

XLA_FFI_DEFINE_HANDLER(rows_handler, rows_impl,
                       ffi::Ffi::Bind()
                           .Arg<Buffer>()
                           .RemainingArgs()
                           .Ret<Buffer>()
                           .Attr<int64_t>("op")
                           .Attr<int64_t>("reduced")
                           .Attr<int64_t>("threads"));
XLA_FFI_DEFINE_HANDLER(loss_handler, loss_impl,
                       ffi::Ffi::Bind().Arg<Buffer>().Arg<Buffer>().RemainingArgs().Ret<Buffer>().Ret<Buffer>()
                           OSM_LOSS_ATTRIBUTES);
XLA_FFI_DEFINE_HANDLER(
    loss_grad_handler, loss_grad_impl,
    ffi::Ffi::Bind().Arg<Buffer>().Arg<Buffer>().Arg<Buffer>().Arg<Buffer>().RemainingArgs().Ret<Buffer>()
        OSM_LOSS_ATTRIBUTES);
XLA_FFI_DEFINE_HANDLER(attention_handler, attention_impl,
                       ffi::Ffi::Bind()
                           .Arg<Buffer>()
                           .Arg<Buffer>()
                           .Arg<Buffer>()
                           .RemainingArgs()
                           .Ret<Buffer>()
                           .Ret<Buffer>() OSM_ATTENTION_ATTRIBUTES.Attr<int64_t>("threads"));
XLA_FFI_DEFINE_HANDLER(attention_grad_handler, attention_grad_impl,
                       ffi::Ffi::Bind()
                           .Arg<Buffer>()
                           .Arg<Buffer>()
                           .Arg<Buffer>()
                           .Arg<Buffer>()
                           .Arg<Buffer>()
                           .RemainingArgs()
                           .RemainingRets() OSM_ATTENTION_ATTRIBUTES.Attr<int64_t>("of_bias")
                           .Attr<int64_t>("threads"));

nb::capsule capsule(XLA_FFI_Handler* handler) { return nb::capsule((void*)handler); }

}  // namespace

void bind_jax(nb::module_& m) {
  // The handlers by name, which from then on use this plan's instruction set and algorithm.
  m.def("jax_targets", [](const Plan& plan) {
    chosen_isa = &isa_of(plan.isa), chosen_algorithm = plan.algorithm;
    nb::dict all;
    all["online_softmax_rows"] = capsule(rows_handler);
    all["online_softmax_loss"] = capsule(loss_handler);
    all["online_softmax_loss_grad"] = capsule(loss_grad_handler);
    all["online_softmax_attention"] = capsule(attention_handler);
    all["online_softmax_attention_grad"] = capsule(attention_grad_handler);
    return all;
  });
}

#endif

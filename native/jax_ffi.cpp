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

#include <limits>

#include "jax_ffi.h"
#include "losses.h"

using namespace osm_jax;

namespace {

// ---- softmax, log_softmax, logsumexp

// Up to so many elements whole adjacent rows go to the kernel with no planning.
constexpr int64_t kSmall = 16384;

void small_rows(const osm::Problem& p, const char* x, const Buffer& y, int64_t rows, int64_t cols) {
  if (p.op != osm::Op::lse) {
    osm::small_rows(*p.isa, p.op, p.dtype, x, (char*)y.untyped_data(), rows, cols);
    return;
  }
  if (wide(y)) {
    osm::small_lse(*p.isa, p.dtype, x, rows, cols, (double*)y.untyped_data());
    return;
  }
  std::vector<double> lse((size_t)rows);
  osm::small_lse(*p.isa, p.dtype, x, rows, cols, lse.data());
  narrow(lse, y);
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

#define OSM_LOSS_ATTRIBUTES                \
  .Attr<double>("sharp")                   \
      .Attr<double>("uniform")             \
      .Attr<double>("z_loss")              \
      .Attr<double>("softcap")             \
      .Attr<double>("inverse_temperature") \
      .Attr<int64_t>("ignore_index")       \
      .Attr<int64_t>("threads")

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
    all["online_softmax_attention"] = capsule(attention_handler());
    all["online_softmax_attention_grad"] = capsule(attention_grad_handler());
    return all;
  });
}

#endif

// Cross-entropy of tensors against class indices, without weights: no Python between the tensors and run_losses().
// Anything else, and what is to be refused, is answered with None, before anything is made.
#include <nanobind/nanobind.h>

#include <vector>

#include "bind.h"
#include "look.h"
#include "losses.h"

namespace nb = nanobind;

namespace {

enum Reduction { kNone, kMean, kSum };

// The order in which np.sum adds doubles that lie end to end: the face of arrays sums with it, and both give the same
// bits.
double summed(const double* v, int64_t n) {
  if (n > 128) {
    const int64_t half = n / 2 - n / 2 % 8;
    return summed(v, half) + summed(v + half, n - half);
  }
  int64_t i = 0;
  double sum = 0;
  if (n >= 8) {
    double of[8];
    for (int k = 0; k < 8; ++k) of[k] = v[k];
    for (i = 8; i + 8 <= n; i += 8)
      for (int k = 0; k < 8; ++k) of[k] += v[i + k];
    sum = ((of[0] + of[1]) + (of[2] + of[3])) + ((of[4] + of[5]) + (of[6] + of[7]));
  }
  for (; i < n; ++i) sum += v[i];
  return sum;
}

struct Call {
  osm::LossProblem p;
  TensorLook logits, targets;
  std::vector<int64_t> index;
  int64_t rows = 1, count = 0;
  int reduction = kMean;

  static constexpr Py_ssize_t kCount = 12;

  // logits, targets, axis, ignore_index, sharp, uniform, z_loss, softcap, 1 / temperature, reduction, threads, room.
  explicit Call(PyObject* const* a) : logits(a[0]), targets(a[1]) {
    p.axis = (int)PyLong_AsLong(a[2]);
    const long long ignored = PyLong_AsLongLong(a[3]);
    p.sharp = PyFloat_AsDouble(a[4]), p.uniform = PyFloat_AsDouble(a[5]), p.z_loss = PyFloat_AsDouble(a[6]);
    p.softcap = PyFloat_AsDouble(a[7]), p.inverse_temperature = PyFloat_AsDouble(a[8]);
    reduction = (int)PyLong_AsLong(a[9]), p.threads = (int)PyLong_AsLong(a[10]);
    const bool odd = PyErr_Occurred() != nullptr;
    if (odd) PyErr_Clear();
    fine_ =
        !odd && small_isa && p.threads > 0 && reduction >= kNone && reduction <= kSum && shapes() && classes(ignored);
  }
  bool fine() const { return fine_; }
  bool wide() const { return p.dtype == osm::Dtype::f64; }

 private:
  bool shapes() {
    const int n = logits.t.ndim, code = logits.dtype();
    if (code < 0 || !logits.lies() || !targets.lies() || !targets.is(dlpack::kInt, 64)) return false;
    if (n < 1 || n > osm::kMaxDims || p.axis < 0 || p.axis >= n || targets.t.ndim != n - 1) return false;
    p.isa = small_isa, p.dtype = (osm::Dtype)code, p.ndim = n, p.x = logits.data();
    for (int d = 0, at = 0; d < n; ++d) {
      p.shape[d] = logits.t.shape[d], p.x_strides[d] = logits.stride(d) * logits.bytes();
      if (p.shape[d] < 1) return false;
      if (d == p.axis) continue;
      if (targets.t.shape[at++] != p.shape[d]) return false;
      rows *= p.shape[d];
    }
    return true;
  }
  // The classes, where all are among these or ignored, and one is not ignored.
  bool classes(int64_t ignored) {
    const auto* from = (const int64_t*)targets.data();
    const int64_t all = p.shape[p.axis];
    const bool whole = targets.whole();
    bool copied = !whole;
    index.reserve(copied ? (size_t)rows : 0);
    int64_t place[osm::kMaxDims] = {}, at = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t t = from[whole ? r : at];
      const bool out = t == ignored;
      if (!out && (t < 0 || t >= all)) return false;
      if (out && !copied) copied = true, index.assign(from, from + r);
      if (copied) index.push_back(out ? osm::kIgnored : t);
      count += !out;
      for (int d = targets.t.ndim - 1; !whole && d >= 0; --d) {
        at += targets.stride(d);
        if (++place[d] < targets.t.shape[d]) break;
        at -= targets.stride(d) * place[d], place[d] = 0;
      }
    }
    p.target = copied ? index.data() : from;
    return count > 0;
  }

  bool fine_ = false;
};

struct Owned {
  PyObject* of = nullptr;
  ~Owned() { Py_XDECREF(of); }
};

// A number in CPU memory in the format of losses, or one for each row.
bool holds(const TensorLook& t, const Call& call) {
  int64_t n = 1;
  for (int d = 0; t.held && d < t.t.ndim; ++d) n *= t.t.shape[d];
  const int code = (int)(call.wide() ? osm::Dtype::f64 : osm::Dtype::f32);
  return t.lies() && t.dtype() == code && n == (call.reduction == kNone ? call.rows : 1) && t.whole();
}

// Call's, and a tensor for the gradient or None -> the loss. room: (logits, targets, reduction) -> an empty loss, where
// that is not one number of the logits' format.
PyObject* cross_entropy_tensors(PyObject*, PyObject* const* args, Py_ssize_t given) {
  if (given != Call::kCount + 1) {
    PyErr_SetString(PyExc_TypeError, "cross_entropy_tensors: 13 arguments");
    return nullptr;
  }
  Call call(args);
  if (!call.fine()) Py_RETURN_NONE;
  osm::LossProblem& p = call.p;
  const double one = call.reduction == kMean ? 1.0 / (double)call.count : 1.0;
  if (args[Call::kCount] != Py_None) {
    const TensorLook y(args[Call::kCount]);
    bool same = y.lies() && y.dtype() == (int)p.dtype && y.t.ndim == p.ndim;
    for (int d = 0; same && d < p.ndim; ++d) {
      same = y.t.shape[d] == p.shape[d];
      p.y_strides[d] = y.stride(d) * y.bytes();
    }
    if (!same) Py_RETURN_NONE;
    p.y = y.data(), p.d_loss = &one;
  }
  Owned loss;
  const bool plainly = call.reduction != kNone && (p.dtype == osm::Dtype::f64 || p.dtype == osm::Dtype::f32);
  if (plainly) {
    Owned none{PyTuple_New(0)};
    loss.of = none.of ? PyObject_CallFunctionObjArgs(tensor_new_empty, args[0], none.of, nullptr) : nullptr;
  } else {
    loss.of = PyObject_CallFunctionObjArgs(args[Call::kCount - 1], args[0], args[1], args[9], nullptr);
  }
  if (!loss.of) return nullptr;
  const TensorLook to(loss.of);
  if (!holds(to, call)) Py_RETURN_NONE;
  try {
    OutsidePython free;
    double few[64] = {};
    std::vector<double> many(call.rows > 64 ? (size_t)call.rows : 0);
    p.loss = many.empty() ? few : many.data();
    osm::run_losses(p);
    const bool each = call.reduction == kNone;
    double total = each ? 0 : summed(p.loss, call.rows);
    if (call.reduction == kMean) total /= (double)call.count;
    for (int64_t r = 0; r < (each ? call.rows : 1); ++r) {
      const double v = each ? p.loss[r] : total;
      if (call.wide())
        ((double*)to.data())[r] = v;
      else
        ((float*)to.data())[r] = (float)v;
    }
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
    return nullptr;
  }
  return Py_NewRef(loss.of);
}

PyMethodDef calls[] = {
    {"cross_entropy_tensors", (PyCFunction)(void (*)(void))cross_entropy_tensors, METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void bind_tensor_losses(nb::module_& m) {
  if (PyModule_AddFunctions(m.ptr(), calls)) throw nb::python_error();
}

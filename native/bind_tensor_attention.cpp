// Plain attention of tensors, forward and backward: no Python between the tensors and run_attention(). Anything not
// plain is answered with None, before anything is made: mixed formats, shapes that do not fit, odd numbers.
#include <nanobind/nanobind.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "attention.h"
#include "bind.h"
#include "look.h"

namespace nb = nanobind;

namespace {

constexpr int64_t kMostFeatures = 1024;
constexpr double kMostScale = 1e18;        // scales and softcaps past this have rules of their own
constexpr int64_t kLargeResult = 1 << 20;  // bytes from which a result comes from the library's own pool

void place(osm::AttentionArray& to, const TensorLook& from) {
  to.p = from.data();
  for (int d = 0; d < from.t.ndim && d < 4; ++d) to.strides[d] = from.stride(d) * from.bytes();
}

// What forward and backward are told beside their operands, from `at` on: mask, bias, scale, softcap, left, right,
// lower_right, threads, like.
struct Call {
  osm::AttentionGradientProblem p;
  std::vector<osm::AttentionSequence> sequences;
  TensorLook q, k, v;
  PyObject* like;
  int64_t queries = 0, keys = 0;

  static constexpr int kCount = 9;

  Call(PyObject* const* qkv, PyObject* const* at) : q(qkv[0]), k(qkv[1]), v(qkv[2]), like(at[8]) {
    if (small_isa && shapes() && added(at[0], at[1]) && numbers(at + 2)) fine_ = true;
  }
  bool fine() const { return fine_; }
  osm::Dtype wide() const { return p.dtype == osm::Dtype::f64 ? osm::Dtype::f64 : osm::Dtype::f32; }
  bool rows_of_heads(const TensorLook& t, int64_t features) const {
    return t.lies() && t.t.ndim == (features < 0 ? 3 : 4) && t.t.shape[0] == p.batch && t.t.shape[1] == p.heads &&
           t.t.shape[2] == queries && (features < 0 || t.t.shape[3] == features);
  }
  // A tensor for a result that is like `t` but for the features; `like` knows those that are not end to end, or large.
  PyObject* room(PyObject* given, const TensorLook& t, int64_t features) const {
    int64_t bytes = t.bytes();
    for (int d = 0; d < 4; ++d) bytes *= t.t.shape[d];
    if (features == t.t.shape[3] && bytes < kLargeResult && t.whole())
      return PyObject_CallFunctionObjArgs(tensor_empty_like, given, nullptr);
    PyObject* n = PyLong_FromLongLong(features);
    PyObject* made = n ? PyObject_CallFunctionObjArgs(like, given, n, nullptr) : nullptr;
    Py_XDECREF(n);
    return made;
  }

 private:
  bool shapes() {
    const int code = q.dtype();
    if (code < 0 || !q.lies() || !k.lies() || !v.lies() || k.dtype() != code || v.dtype() != code) return false;
    if (q.t.ndim != 4 || k.t.ndim != 4 || v.t.ndim != 4) return false;
    const int64_t *s = q.t.shape, *sk = k.t.shape, *sv = v.t.shape;
    p.isa = small_isa, p.dtype = (osm::Dtype)code;
    // The codes of formats that are both are the same.
    p.stored = (osm::Stored)code;
    p.batch = s[0], p.heads = s[1], p.groups = sk[1], p.d = s[3], p.dv = sv[3];
    queries = s[2], keys = sk[2];
    if (p.batch < 1 || p.heads < 1 || queries < 1 || p.groups < 1 || keys < 1 || p.heads % p.groups) return false;
    if (p.d < 1 || p.dv < 1 || p.d > kMostFeatures || p.dv > kMostFeatures) return false;
    if (sk[0] != p.batch || sk[3] != p.d || sv[0] != p.batch || sv[1] != p.groups || sv[2] != keys) return false;
    sequences.assign((size_t)p.batch, {0, queries, 0, keys});
    p.sequences = sequences.data();
    place(p.q, q), place(p.k, k), place(p.v, v);
    p.single = code != (int)osm::Dtype::f64;
    return true;
  }
  bool added(PyObject* mask, PyObject* bias) {
    if (mask != Py_None) {
      const TensorLook t(mask);
      if (!t.lies() || !t.is(dlpack::kBool, 8) || !broadcast(p.mask, t)) return false;
    }
    if (bias != Py_None) {
      const TensorLook t(bias);
      if (!t.lies() || t.dtype() != (int)wide() || !broadcast(p.bias, t)) return false;
    }
    return true;
  }
  bool broadcast(osm::AttentionArray& to, const TensorLook& t) const {
    const int64_t scores[] = {p.batch, p.heads, queries, keys};
    if (t.t.ndim > 4) return false;
    to.p = t.data();
    for (int d = 0; d < t.t.ndim; ++d) {
      const int at = d + 4 - t.t.ndim;
      if (t.t.shape[d] == 1) continue;
      if (t.t.shape[d] != scores[at]) return false;
      to.strides[at] = t.stride(d) * t.bytes();
    }
    return true;
  }
  bool numbers(PyObject* const* at) {
    p.scale = at[0] == Py_None ? 1 / std::sqrt((double)p.d) : PyFloat_AsDouble(at[0]);
    p.softcap = PyFloat_AsDouble(at[1]);
    const long long left = PyLong_AsLongLong(at[2]), right = PyLong_AsLongLong(at[3]);
    p.lower_right = at[4] == Py_True;
    p.threads = (int)PyLong_AsLong(at[5]);
    if (PyErr_Occurred()) {
      PyErr_Clear();
      return false;
    }
    if (left >= 0) p.left = left;
    if (right >= 0) p.right = right;
    return std::fabs(p.scale) < kMostScale && p.softcap >= 0 && p.softcap < kMostScale && p.threads > 0;
  }

  bool fine_ = false;
};

// Owned references that go with the scope.
struct Made {
  PyObject* of[3] = {};
  ~Made() {
    for (PyObject* o : of) Py_XDECREF(o);
  }
};

// Runs without the interpreter's lock; false where it raised, with the exception set.
template <class F>
bool run_free(F&& work) {
  try {
    OutsidePython free;
    work();
    return true;
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
  return false;
}

// Room for an lse: of q's format where that is one of statistics, else made by `statistics`.
PyObject* room_for_lse(const Call& call, PyObject* q, PyObject* statistics) {
  if (call.p.dtype != call.wide()) return PyObject_CallFunctionObjArgs(statistics, q, nullptr);
  PyObject* shape = PyTuple_New(3);
  for (int d = 0; shape && d < 3; ++d) {
    PyObject* n = PyLong_FromLongLong(call.q.t.shape[d]);
    if (!n || PyTuple_SetItem(shape, d, n)) Py_CLEAR(shape);
  }
  PyObject* made = shape ? PyObject_CallFunctionObjArgs(tensor_new_empty, q, shape, nullptr) : nullptr;
  Py_XDECREF(shape);
  return made;
}

// (q, k, v, Call's, statistics) -> (output, lse). statistics: q -> an empty lse, where that is not of q's format; None
// where no lse is wanted, which is then None too.
PyObject* attention_tensors(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 3 + Call::kCount + 1) {
    PyErr_SetString(PyExc_TypeError, "attention_tensors: 13 arguments");
    return nullptr;
  }
  Call call(args, args + 3);
  if (!call.fine()) Py_RETURN_NONE;
  Made made;
  if (!(made.of[0] = call.room(args[0], call.q, call.p.dv))) return nullptr;
  PyObject* statistics = args[3 + Call::kCount];
  const bool wanted = statistics != Py_None;
  made.of[1] = wanted ? room_for_lse(call, args[0], statistics) : Py_NewRef(Py_None);
  if (!made.of[1]) return nullptr;
  const TensorLook output(made.of[0]), lse(made.of[1]);
  if (!call.rows_of_heads(output, call.p.dv) || output.dtype() != call.q.dtype()) Py_RETURN_NONE;
  if (wanted && (!call.rows_of_heads(lse, -1) || lse.dtype() != (int)call.wide())) Py_RETURN_NONE;
  place(call.p.o, output);
  if (wanted) place(call.p.lse, lse);
  if (!run_free([&] { osm::run_attention(call.p); })) return nullptr;
  return PyTuple_Pack(2, made.of[0], made.of[1]);
}

// (d_output, d_lse or None, q, k, v, output, lse, Call's) -> the gradients of q, k and v.
PyObject* attention_gradient_tensors(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 7 + Call::kCount) {
    PyErr_SetString(PyExc_TypeError, "attention_gradient_tensors: 16 arguments");
    return nullptr;
  }
  Call call(args + 2, args + 7);
  if (!call.fine()) Py_RETURN_NONE;
  const int code = call.q.dtype(), wide = (int)call.wide();
  const TensorLook d_out(args[0]), output(args[5]), lse(args[6]);
  if (!call.rows_of_heads(d_out, call.p.dv) || d_out.dtype() != code) Py_RETURN_NONE;
  if (!call.rows_of_heads(output, call.p.dv) || output.dtype() != code) Py_RETURN_NONE;
  if (!call.rows_of_heads(lse, -1) || lse.dtype() != wide) Py_RETURN_NONE;
  osm::AttentionGradientProblem& p = call.p;
  place(p.d_out, d_out), place(p.o, output), place(p.lse, lse);
  std::vector<double> d_lse;
  if (args[1] != Py_None) {
    const TensorLook t(args[1]);
    if (!call.rows_of_heads(t, -1) || t.dtype() != wide) Py_RETURN_NONE;
    for (int64_t b = 0; b < p.batch; ++b)
      for (int64_t h = 0; h < p.heads; ++h)
        for (int64_t i = 0; i < call.queries; ++i) {
          const int64_t at = b * t.stride(0) + h * t.stride(1) + i * t.stride(2);
          d_lse.push_back(p.single ? (double)((const float*)t.data())[at] : ((const double*)t.data())[at]);
        }
    p.d_lse.p = (const char*)d_lse.data();
    p.d_lse.strides[0] = 8 * p.heads * call.queries, p.d_lse.strides[1] = 8 * call.queries, p.d_lse.strides[2] = 8;
  }
  Made made;
  const TensorLook* of[] = {&call.q, &call.k, &call.v};
  osm::AttentionArray* to[] = {&p.q_grad, &p.k_grad, &p.v_grad};
  for (int i = 0; i < 3; ++i) {
    if (!(made.of[i] = call.room(args[2 + i], *of[i], of[i]->t.shape[3]))) return nullptr;
    const TensorLook t(made.of[i]);
    bool same = t.lies() && t.dtype() == code && t.t.ndim == 4;
    for (int d = 0; same && d < 4; ++d) same = t.t.shape[d] == of[i]->t.shape[d];
    if (!same) Py_RETURN_NONE;
    place(*to[i], t);
  }
  if (!run_free([&] { osm::run_attention_gradient(p); })) return nullptr;
  return PyTuple_Pack(3, made.of[0], made.of[1], made.of[2]);
}

PyMethodDef calls[] = {
    {"attention_tensors", (PyCFunction)(void (*)(void))attention_tensors, METH_FASTCALL, nullptr},
    {"attention_gradient_tensors", (PyCFunction)(void (*)(void))attention_gradient_tensors, METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void bind_tensor_attention(nb::module_& m) {
  if (PyModule_AddFunctions(m.ptr(), calls)) throw nb::python_error();
}

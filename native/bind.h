// What the files of the Python module share.
#pragma once
#include <nanobind/nanobind.h>

#include <string>

#include "table.h"

// How a call is to be carried out: (isa, algorithm or -1, fast, threads).
struct Plan {
  std::string isa;
  int algorithm;
  bool fast;
  int threads;
};

const osm::Isa& isa_of(const std::string& name);

// Lets other Python threads run. A thread that comes back while the interpreter ends finds no way in: Python before
// 3.14 unwinds it then, which C++ answers with std::terminate, so it is held until the process is gone.
void enter_python(PyThreadState* state);

class OutsidePython {
 public:
  OutsidePython() : state_(PyEval_SaveThread()) {}
  ~OutsidePython() { enter_python(state_); }
  OutsidePython(const OutsidePython&) = delete;
  OutsidePython& operator=(const OutsidePython&) = delete;

 private:
  PyThreadState* state_;
};

// Calls on few elements: the instruction set they use, null where they are turned off, and their most elements.
extern const osm::Isa* small_isa;
constexpr int64_t kSmall = 16384;

void bind_attention(nanobind::module_& m);
void bind_exact(nanobind::module_& m);
void bind_losses(nanobind::module_& m);
void bind_product(nanobind::module_& m);
void bind_scans(nanobind::module_& m);
void bind_sample(nanobind::module_& m);
void bind_jax(nanobind::module_& m);
void bind_tensor(nanobind::module_& m);
void bind_tensor_attention(nanobind::module_& m);
void bind_tensor_losses(nanobind::module_& m);

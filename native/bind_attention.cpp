// Attention's part of the Python module: one object that describes a call, forward or backward. Whoever fills it in
// keeps the arrays alive.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <string>
#include <vector>

#include "attention.h"
#include "bind.h"

namespace nb = nanobind;

namespace {

using Longs = std::vector<int64_t>;

class Attention {
 public:
  // sizes: batch, heads, heads of k, features of q and of v. sequences: of each of batch its first query, queries,
  // first key and keys.
  Attention(const Plan& plan, int dtype, int stored, const Longs& sizes, const Longs& sequences) {
    p_.isa = &isa_of(plan.isa), p_.threads = plan.threads;
    if (sizes.size() != 5 || sequences.size() != (size_t)sizes[0] * 4)
      throw nb::value_error("five sizes, and four numbers for each of batch");
    p_.dtype = (osm::Dtype)dtype, p_.stored = (osm::Stored)stored;
    p_.batch = sizes[0], p_.heads = sizes[1], p_.groups = sizes[2], p_.d = sizes[3], p_.dv = sizes[4];
    for (size_t i = 0; i < sequences.size(); i += 4)
      sequences_.push_back({sequences[i], sequences[i + 1], sequences[i + 2], sequences[i + 3]});
    p_.sequences = sequences_.data();
  }

  void array(const std::string& name, uintptr_t address, const Longs& strides) {
    using Problem = osm::AttentionGradientProblem;
    static const std::map<std::string, osm::AttentionArray Problem::*> arrays = {
        {"q", &Problem::q},           {"k", &Problem::k},           {"v", &Problem::v},
        {"o", &Problem::o},           {"mask", &Problem::mask},     {"bias", &Problem::bias},
        {"lse", &Problem::lse},       {"rest", &Problem::rest},     {"level", &Problem::level},
        {"bins", &Problem::bins},     {"a", &Problem::a},           {"odd", &Problem::odd},
        {"d_out", &Problem::d_out},   {"d_lse", &Problem::d_lse},   {"q_grad", &Problem::q_grad},
        {"k_grad", &Problem::k_grad}, {"v_grad", &Problem::v_grad}, {"bias_grad", &Problem::bias_grad},
        {"delta", &Problem::delta}};
    const auto found = arrays.find(name);
    if (found == arrays.end() || strides.size() > 4) throw nb::value_error(("no array " + name).c_str());
    osm::AttentionArray& to = p_.*found->second;
    to.p = (const char*)address;
    for (size_t i = 0; i < strides.size(); ++i) to.strides[i] = strides[i];
  }
  // One number a head, double; see AttentionProblem.
  void numbers(const std::string& name, uintptr_t address) {
    const std::map<std::string, const double**> all = {
        {"slopes", &p_.slopes}, {"sinks", &p_.sinks}, {"k_scales", &p_.k_scales}, {"v_scales", &p_.v_scales}};
    const auto found = all.find(name);
    if (found == all.end()) throw nb::value_error(("no numbers " + name).c_str());
    *found->second = (const double*)address;
  }
  void blocks(uintptr_t table, int64_t stride, int64_t size) {
    p_.blocks = (const int64_t*)table, p_.blocks_stride = stride, p_.block_size = size;
  }
  void scores(double scale, double softcap) { p_.scale = scale, p_.softcap = softcap; }
  // Distances to the left and right, negative for no limit.
  void band(bool lower_right, int64_t left, int64_t right) {
    p_.lower_right = lower_right;
    if (left >= 0) p_.left = left;
    if (right >= 0) p_.right = right;
  }
  void dropout(double p, uint64_t seed) { p_.drop = p, p_.seed = seed; }
  // Batch, head, query and key of the whole; see AttentionProblem.
  void origin(const Longs& at) {
    if (at.size() != 4) throw nb::value_error("batch, head, query, key");
    for (size_t i = 0; i < 4; ++i) p_.origin[i] = at[i];
    p_.placed = true;
  }
  // Raw sums of these keys alone, in "o", "lse" and "rest"; see AttentionProblem.
  void keys(int64_t first, int64_t last) { p_.first_key = first, p_.last_key = last; }
  void any_order() { p_.any_order = true; }
  void forward(bool wide, bool single) {
    p_.wide = wide, p_.single = single;
    OutsidePython free;
    osm::run_attention(p_);
  }
  void backward(bool single, bool bias_double) {
    p_.single = single, p_.bias_grad_double = bias_double;
    OutsidePython free;
    osm::run_attention_gradient(p_);
  }

 private:
  osm::AttentionGradientProblem p_;
  std::vector<osm::AttentionSequence> sequences_;
};

void keep_array(double p, uint64_t seed, const Longs& at, int64_t keys, uintptr_t to) {
  if (at.size() != 4) throw nb::value_error("batch, head, query, first key");
  osm::attention_keep(p, seed, at[0], at[1], at[2], at[3], keys, (uint8_t*)to);
}

// Of `addresses`: level, bins, a, odd.
osm::AttentionSums sums_at(const std::vector<uintptr_t>& addresses) {
  if (addresses.size() != 4) throw nb::value_error("level, bins, a, odd");
  return {(void*)addresses[0], (int32_t*)addresses[1], (int64_t*)addresses[2], (uint8_t*)addresses[3]};
}
void sums_merge(const Plan& plan, int dtype, int64_t rows, int64_t dv, const std::vector<uintptr_t>& to,
                const std::vector<uintptr_t>& from) {
  const osm::AttentionSums all = sums_at(to), more = sums_at(from);
  nb::gil_scoped_release free;
  osm::run_sums_merge(isa_of(plan.isa), (osm::Dtype)dtype, plan.threads, rows, dv, all, more);
}
void sums_read(const Plan& plan, int dtype, int64_t rows, int64_t dv, const std::vector<uintptr_t>& from, uintptr_t o,
               uintptr_t lse) {
  const osm::AttentionSums all = sums_at(from);
  nb::gil_scoped_release free;
  osm::run_sums_read(isa_of(plan.isa), (osm::Dtype)dtype, plan.threads, rows, dv, all, (char*)o, (double*)lse);
}

}  // namespace

void bind_attention(nb::module_& m) {
  nb::class_<Attention>(m, "Attention")
      .def(nb::init<const Plan&, int, int, const Longs&, const Longs&>())
      .def("array", &Attention::array)
      .def("numbers", &Attention::numbers)
      .def("blocks", &Attention::blocks)
      .def("scores", &Attention::scores)
      .def("band", &Attention::band)
      .def("dropout", &Attention::dropout)
      .def("origin", &Attention::origin)
      .def("keys", &Attention::keys)
      .def("any_order", &Attention::any_order)
      .def("forward", &Attention::forward)
      .def("backward", &Attention::backward);
  m.def("keep_array", &keep_array);
  m.def("attention_sums_merge", &sums_merge);
  m.def("attention_sums_read", &sums_read);
  m.def("arithmetic_peak", [](const Plan& plan, int dtype) {
    OutsidePython free;
    return osm::arithmetic_peak(isa_of(plan.isa), (osm::Dtype)dtype, plan.threads);
  });
}

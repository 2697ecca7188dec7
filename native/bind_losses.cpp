// The losses' part of the Python module: one object that describes a call. Whoever fills it in keeps the arrays alive.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <string>
#include <vector>

#include "bind.h"
#include "losses.h"

namespace nb = nanobind;

namespace {

using Longs = std::vector<int64_t>;

class Losses {
 public:
  // axis: that of the classes.
  Losses(const Plan& plan, int dtype, const Longs& shape, int axis) {
    p_.isa = &isa_of(plan.isa), p_.threads = plan.threads, p_.dtype = (osm::Dtype)dtype;
    if (shape.size() > osm::kMaxDims || axis < 0 || axis >= (int)shape.size()) throw nb::value_error("shape and axis");
    p_.ndim = (int)shape.size(), p_.axis = axis;
    for (int d = 0; d < p_.ndim; ++d) p_.shape[d] = shape[(size_t)d];
  }
  // Arrays of the logits' shape.
  void array(const std::string& name, uintptr_t address, const Longs& strides, int dtype) {
    int64_t* to = nullptr;
    if (name == "x") to = p_.x_strides, p_.x = (const char*)address;
    if (name == "y") to = p_.y_strides, p_.y = (char*)address;
    if (name == "other") to = p_.other_strides, p_.other = (const char*)address;
    if (name == "probabilities") {
      to = p_.p_strides, p_.probabilities = (const char*)address, p_.probabilities_dtype = (osm::Dtype)dtype;
    }
    if (!to || (int)strides.size() != p_.ndim) throw nb::value_error(("no array " + name).c_str());
    for (int d = 0; d < p_.ndim; ++d) to[d] = strides[(size_t)d];
  }
  // Numbers one a row or one a class, see LossProblem: double.
  void numbers(const std::string& name, uintptr_t address) {
    const std::map<std::string, const double**> given = {{"class_weights", &p_.class_weights},
                                                         {"row_weights", &p_.row_weights},
                                                         {"d_loss", &p_.d_loss},
                                                         {"d_lse", &p_.d_lse},
                                                         {"whole_m", &p_.whole_m},
                                                         {"whole_s", &p_.whole_s},
                                                         {"whole_target", &p_.whole_target},
                                                         {"target_weight", &p_.target_weight}};
    const std::map<std::string, double**> made = {{"loss", &p_.loss},
                                                  {"lse", &p_.lse},
                                                  {"entropy", &p_.entropy},
                                                  {"m", &p_.made.m},
                                                  {"s", &p_.made.s},
                                                  {"target_score", &p_.made.target},
                                                  {"scores", &p_.made.scores},
                                                  {"moment", &p_.made.moment},
                                                  {"divergence", &p_.divergence}};
    const auto in = given.find(name);
    const auto out = made.find(name);
    if (in != given.end())
      *in->second = (const double*)address;
    else if (out != made.end())
      *out->second = (double*)address;
    else
      throw nb::value_error(("no numbers " + name).c_str());
  }
  void targets(uintptr_t address) { p_.target = (const int64_t*)address; }
  void rank(uintptr_t address) { p_.rank = (int64_t*)address; }
  void tokens(uintptr_t address, int64_t count, uintptr_t log_probabilities) {
    p_.tokens = (const int64_t*)address, p_.tokens_count = count;
    p_.log_probabilities = (double*)log_probabilities;
  }
  void rule(double sharp, double uniform, double z_loss, double softcap, double inverse_temperature) {
    p_.sharp = sharp, p_.uniform = uniform, p_.z_loss = z_loss;
    p_.softcap = softcap, p_.inverse_temperature = inverse_temperature;
  }
  void run(bool d_loss_each, bool ignored_too, double weight_sum) {
    p_.d_loss_each = d_loss_each, p_.ignored_too = ignored_too, p_.weight_sum = weight_sum;
    OutsidePython free;
    osm::run_losses(p_);
  }

 private:
  osm::LossProblem p_;
};

}  // namespace

void bind_losses(nb::module_& m) {
  nb::class_<Losses>(m, "Losses")
      .def(nb::init<const Plan&, int, const Longs&, int>())
      .def("array", &Losses::array)
      .def("numbers", &Losses::numbers)
      .def("targets", &Losses::targets)
      .def("rank", &Losses::rank)
      .def("tokens", &Losses::tokens)
      .def("rule", &Losses::rule)
      .def("run", &Losses::run);
}

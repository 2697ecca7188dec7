// Exhaustive checks of the 16-bit formats: exp of every value; every pair through merge, softmax and log-sum-exp.
//
//   exhaustive [--isa NAME|all] [--only PREFIX,...] [--format f16|bf16] [--stride N] [--threads N] [--json]
//              [--inject value|special]
//   exhaustive --show FORMAT A B ...  the reference's values for pairs of codes, in hexadecimal: each is two doubles
//   exhaustive --list                 the names of the checks
//
// --isa: the best by default. --only: checks whose names start so; all by default. --stride: every N-th code as the
// first of a pair. --inject: spoils one result of every check, which has to be found. Exit codes: 0 where every result
// is as promised, 1 where one is not, 2 for arguments that will not do.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "pairs.h"

namespace {

using exhaustive::Check;
using exhaustive::Format;
using exhaustive::Request;
using exhaustive::Tally;

struct Options {
  std::vector<const osm::Isa*> isas;
  std::vector<std::string> formats{"f16", "bf16"};
  std::vector<std::string> only;
  Request request{};
  bool json = false;

  bool wants(const std::string& name) const {
    if (only.empty()) return true;
    for (const std::string& prefix : only)
      if (!name.compare(0, prefix.size(), prefix)) return true;
    return false;
  }
};

[[noreturn]] void refuse(const std::string& given, const std::string& would_do) {
  std::fprintf(stderr, "exhaustive: %s: %s would do\n", given.c_str(), would_do.c_str());
  std::exit(2);
}

int number(const char* option, const char* given, int most) {
  char* end = nullptr;
  const long value = std::strtol(given, &end, 10);
  if (end != given && !*end && value > 0 && value <= most) return (int)value;
  refuse(std::string(option) + "=" + given, "1 to " + std::to_string(most));
}

std::vector<const osm::Isa*> isas(const std::string& name) {
  int count = 0;
  const osm::Isa* const* built = osm::all_isas(&count);
  std::vector<const osm::Isa*> usable;
  std::string names = "all";
  for (int i = 0; i < count; ++i)
    if (built[i]->usable()) usable.push_back(built[i]), names += std::string(", ") + built[i]->name;
  if (name == "all") return usable;
  if (name.empty()) return {usable.front()};
  for (const osm::Isa* isa : usable)
    if (name == isa->name) return {isa};
  refuse("--isa=" + name, names);
}

const Format& format_named(const std::string& name) {
  // Each is a table of some megabytes: made where it is wanted.
  if (name == "f16") return Format::f16();
  if (name == "bf16") return Format::bf16();
  refuse("format " + name, "f16 or bf16");
}

std::vector<std::string> all_names() {
  std::vector<std::string> names{"exp", "exps"};
  for (const Check& check : exhaustive::checks()) names.push_back(check.name);
  return names;
}

std::vector<std::string> prefixes(const std::string& given) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= given.size();) {
    const size_t comma = std::min(given.find(',', at), given.size());
    parts.push_back(given.substr(at, comma - at));
    at = comma + 1;
  }
  for (const std::string& part : parts) {
    bool known = false;
    for (const std::string& name : all_names()) known |= !part.empty() && !name.compare(0, part.size(), part);
    if (!known) refuse("--only=" + part, "the start of a name that --list gives");
  }
  return parts;
}

int finite_code(const Format& f, const char* given) {
  char* end = nullptr;
  const long code = std::strtol(given, &end, 16);
  if (end != given && !*end && code >= 0 && code < exhaustive::kCodes && !f.is_special((int)code)) return (int)code;
  refuse(std::string("code ") + given, "the four hexadecimal digits of a finite value");
}

int show(const Format& f, char** codes, int count) {
  for (int i = 0; i + 1 < count; i += 2) {
    const double a = f.value[(size_t)finite_code(f, codes[i])], b = f.value[(size_t)finite_code(f, codes[i + 1])];
    const exhaustive::DD share = exhaustive::share_of(a, b), lse = exhaustive::logaddexp_of(a, b);
    std::printf("{\"a\": %.17g, \"b\": %.17g, \"softmax\": [%.17g, %.17g], \"logsumexp\": [%.17g, %.17g]}\n", a, b,
                share.hi, share.lo, lse.hi, lse.lo);
  }
  return 0;
}

// JSON has no word for infinity, but numbers that are read as one.
std::string as_json(double v) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", v);
  return v <= std::numeric_limits<double>::max() ? text : "1e999";
}

struct Finding {
  std::string check;
  const Format& format;
  const osm::Isa& isa;
  double unit, bound;
  const char* unit_name;
  Tally tally;
  double seconds, float_ulps;
  // States are held to a relative error; of them none is counted as correctly rounded or not.
  bool counted() const { return !std::strcmp(unit_name, "ulp"); }
};

// Prints results as they come: lines for people, or the items of a JSON list.
class Report {
 public:
  explicit Report(bool json) : json_(json) {}
  int64_t violations = 0;

  void add(const Finding& found) {
    violations += found.tally.violations + found.tally.undecided;
    json_ ? item(found) : line(found);
    std::fflush(stdout);
  }
  void line(const Finding& f) const {
    const Tally& t = f.tally;
    std::printf("%-28s %-4s %-6s %10lld pairs: ", f.check.c_str(), f.format.name, f.isa.name, (long long)t.pairs);
    if (f.counted())
      std::printf("%lld of %lld results not correctly rounded, ", (long long)t.not_correctly_rounded,
                  (long long)t.results);
    std::printf("worst %.6f %s", t.worst / f.unit, f.unit_name);
    if (t.worst_a >= 0)
      std::printf(t.worst_b < 0 ? " at 0x%04x" : " at (0x%04x, 0x%04x)", (unsigned)t.worst_a, (unsigned)t.worst_b);
    std::printf(", bound %g, %lld violations, %lld undecided, %.1f s\n", f.bound, (long long)t.violations,
                (long long)t.undecided, f.seconds);
    for (const std::string& shown : t.lines) std::printf("  VIOLATION %s\n", shown.c_str());
  }
  void item(const Finding& f) {
    const Tally& t = f.tally;
    const std::string wrong = f.counted() ? std::to_string(t.not_correctly_rounded) : "null";
    std::printf("%s\n {\"check\": \"%s\", \"format\": \"%s\", \"isa\": \"%s\", \"pairs\": %lld, \"results\": %lld",
                comma_, f.check.c_str(), f.format.name, f.isa.name, (long long)t.pairs, (long long)t.results);
    std::printf(", \"not_correctly_rounded\": %s, \"worst\": %s, \"worst_pair\": [%d, %d], \"unit\": \"%s\"",
                wrong.c_str(), as_json(t.worst / f.unit).c_str(), t.worst_a, t.worst_b, f.unit_name);
    std::printf(", \"bound\": %.9g, \"float32_ulps\": %s, \"second_looks\": %lld, \"in_double_double\": %lld", f.bound,
                as_json(f.float_ulps).c_str(), (long long)t.second_looks, (long long)t.in_double_double);
    std::printf(", \"undecided\": %lld, \"violations\": %lld, \"seconds\": %.3f, \"shown\": [", (long long)t.undecided,
                (long long)t.violations, f.seconds);
    for (size_t i = 0; i < t.lines.size(); ++i) std::printf("%s\"%s\"", i ? ", " : "", t.lines[i].c_str());
    std::printf("]}");
    comma_ = ",";
  }
  void begin(const Request& request) const {
    if (json_) std::printf("{\"threads\": %d, \"stride\": %d, \"checks\": [", request.threads, request.stride);
  }
  void end() const {
    if (json_)
      std::printf("\n]}\n");
    else
      std::printf("%lld violations\n", (long long)violations);
  }

 private:
  bool json_;
  const char* comma_ = "";
};

void run_all(const Options& options, Report& report) {
  for (const osm::Isa* isa : options.isas) {
    Request request = options.request;
    request.isa = isa;
    for (const std::string& wanted : options.formats) {
      const Format& format = format_named(wanted);
      const auto timed = [&](const std::string& name, double unit, double bound, const char* unit_name, auto&& body) {
        if (!options.wants(name)) return;
        double float_ulps = 0;
        const auto start = std::chrono::steady_clock::now();
        const Tally tally = body(&float_ulps);
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        report.add({name, format, *isa, unit, bound, unit_name, tally, seconds.count(), float_ulps});
      };
      timed("exp", 1, exhaustive::kBound, "ulp",
            [&](double* ulps) { return exhaustive::check_exp(format, request, ulps); });
      timed("exps", 1, exhaustive::kBound, "ulp", [&](double*) { return exhaustive::check_exps(format, request); });
      for (const Check& check : exhaustive::checks())
        timed(check.name, check.unit, check.bound, check.unit_name,
              [&](double*) { return exhaustive::check_pairs(check, format, request); });
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  std::string isa;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    const auto value = [&]() -> const char* {
      if (i + 1 >= argc) refuse(option, "a value after it");
      return argv[++i];
    };
    if (option == "--isa")
      isa = value();
    else if (option == "--only")
      options.only = prefixes(value());
    else if (option == "--format")
      options.formats = {format_named(value()).name};
    else if (option == "--stride")
      options.request.stride = number("--stride", value(), exhaustive::kCodes);
    else if (option == "--threads")
      options.request.threads = number("--threads", value(), 1024);
    else if (option == "--json")
      options.json = true;
    else if (option == "--inject") {
      const std::string what = value();
      if (what != "value" && what != "special") refuse("--inject=" + what, "value or special");
      options.request.inject = what == "value" ? exhaustive::Inject::value : exhaustive::Inject::special;
    } else if (option == "--show" && i + 3 < argc) {
      return show(format_named(argv[i + 1]), argv + i + 2, argc - i - 2);
    } else if (option == "--list") {
      for (const std::string& name : all_names()) std::printf("%s\n", name.c_str());
      return 0;
    } else {
      refuse(option,
             "--isa, --only, --format, --stride, --threads, --json, --inject, --list, or --show FORMAT A B ...");
    }
  }
  options.isas = isas(isa);
  Report report(options.json);
  report.begin(options.request);
  run_all(options, report);
  report.end();
  return report.violations != 0;
}

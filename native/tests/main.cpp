// Runs every kernel of every instruction set this CPU has over the awkward sizes, on buffers of the exact size.
//
//   native_tests [--expect ISA] [--no-walls]
//
// ISA: the instruction set that must be chosen first on this machine. --no-walls: no buffers next to pages that may not
// be touched, for emulators that read the whole of a masked load.
#include <cstdio>
#include <cstring>

#include "memory_under_test.h"
#include "truth.h"

namespace tests {

Tally tally;

void Tally::check(bool good, const std::string& what) {
  ++(good ? passed : failed);
  // One line a variant: a wrong kernel is wrong at many sizes.
  if (!good && shown.insert(what.substr(0, what.find(' '))).second) std::printf("FAILED %s\n", what.c_str());
}

std::vector<const Isa*> usable_isas() {
  int count = 0;
  const Isa* const* all = osm::all_isas(&count);
  std::vector<const Isa*> usable;
  for (int i = 0; i < count; ++i)
    if (all[i]->usable()) usable.push_back(all[i]);
  return usable;
}

}  // namespace tests

int main(int argc, char** argv) {
  const auto isas = tests::usable_isas();
  std::printf("instruction sets:");
  for (const tests::Isa* isa : isas) std::printf(" %s", isa->name);
  std::printf("\n");
  for (int i = 1; i < argc; ++i) {
    if (!std::strcmp(argv[i], "--no-walls")) {
      tests::wheres = {tests::Where::heap};
    } else if (!std::strcmp(argv[i], "--expect") && i + 1 < argc) {
      const char* name = argv[++i];
      tests::tally.check(!std::strcmp(isas.front()->name, name), std::string("first choice is not ") + name);
    } else {
      std::printf("%s: unknown; --expect ISA and --no-walls would do\n", argv[i]);
      return 2;
    }
  }
  tests::tally.check(osm::find_isa("nonsense") == nullptr, "an unknown instruction set was found");
  tests::test_kernels();
  std::printf("kernels: %lld passed, %lld failed so far\n", (long long)tests::tally.passed,
              (long long)tests::tally.failed);
  std::fflush(stdout);
  tests::test_driver();
  tests::test_attention();
  tests::test_attention_sums();
  tests::test_product();
  tests::test_exact();
  tests::test_scans();
  tests::test_sample();
  tests::test_losses();
  std::printf("%lld passed, %lld failed\n", (long long)tests::tally.passed, (long long)tests::tally.failed);
  return tests::tally.failed != 0;
}

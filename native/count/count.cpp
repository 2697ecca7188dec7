// Runs one operation on one array a given number of times, on one thread, and nothing else: the difference of two runs
// is what the calls in between cost.
//
//   count OP DTYPE ALGORITHM ROWS COLS CALLS [in_place]
//
// With in_place the result takes the place of the array. Exit codes: 2 for arguments that will not do, 3 where the CPU
// (or the emulated one) lacks AVX2.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "../driver.h"
#include "../tests/formats.h"

namespace {

using osm::Dtype;

// valgrind knows nothing newer.
constexpr const char* kIsa = "avx2";
constexpr int64_t kPage = 4096;
// Of rows, columns and calls: sizes in bytes stay within 64 bits.
constexpr int64_t kMost = int64_t{1} << 28;
// Values drawn; the array repeats them. No power of two, so that the rows differ.
constexpr size_t kDrawn = 4099;

// The place of `given` among `names`, or the end of the program.
int choice(const char* what, const char* given, std::initializer_list<const char*> names) {
  std::string would_do;
  int i = 0;
  for (const char* name : names) {
    if (!std::strcmp(name, given)) return i;
    would_do += std::string(i++ ? ", " : "") + name;
  }
  std::fprintf(stderr, "count: %s=%s: %s would do\n", what, given, would_do.c_str());
  std::exit(2);
}

int64_t positive(const char* what, const char* given) {
  char* end = nullptr;
  const long long value = std::strtoll(given, &end, 10);
  if (end != given && !*end && value > 0 && value <= kMost) return value;
  std::fprintf(stderr, "count: %s=%s: 1 to %lld would do\n", what, given, (long long)kMost);
  std::exit(2);
}

// Sums of twelve uniform numbers, less six: normal enough, the same everywhere, and cheap under an emulator.
std::vector<double> normal_like(size_t n) {
  uint64_t state = 1;
  std::vector<double> drawn(n);
  for (double& value : drawn) {
    value = -6;
    for (int i = 0; i < 12; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      value += (double)(state >> 11) * 0x1p-53;
    }
  }
  return drawn;
}

struct Free {
  void operator()(char* p) const { std::free(p); }
};
using Pages = std::unique_ptr<char, Free>;

Pages pages(int64_t bytes) {
  char* memory = static_cast<char*>(std::aligned_alloc(kPage, (size_t)((bytes + kPage - 1) / kPage * kPage)));
  if (!memory) throw std::bad_alloc();
  return Pages(memory);
}

void fill(char* x, int64_t bytes, Dtype dtype) {
  const std::vector<double> drawn = normal_like(kDrawn);
  const int64_t size = (int64_t)osm::dtype_size(dtype), period = (int64_t)kDrawn * size;
  std::vector<char> pattern((size_t)period);
  for (size_t i = 0; i < kDrawn; ++i) tests::store(dtype, pattern.data() + (int64_t)i * size, drawn[i]);
  for (int64_t at = 0; at < bytes; at += period)
    std::memcpy(x + at, pattern.data(), (size_t)(bytes - at < period ? bytes - at : period));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7 && argc != 8) {
    std::fprintf(stderr, "usage: count OP DTYPE ALGORITHM ROWS COLS CALLS [in_place]\n");
    return 2;
  }
  osm::Problem problem;
  // In the order of the enumerations in table.h.
  problem.op = (osm::Op)choice("OP", argv[1], {"softmax", "log_softmax", "logsumexp"});
  problem.dtype = (Dtype)choice("DTYPE", argv[2], {"f32", "f64", "f16", "bf16"});
  problem.algorithm = choice("ALGORITHM", argv[3], {"naive", "three_pass", "online", "cached"});
  const int64_t rows = positive("ROWS", argv[4]), cols = positive("COLS", argv[5]), calls = positive("CALLS", argv[6]);
  const bool reduces = problem.op == osm::Op::lse;
  const bool in_place = argc == 8 && choice("PLACE", argv[7], {"in_place"}) == 0;
  if (in_place && reduces) {
    std::fprintf(stderr, "count: PLACE=in_place: softmax or log_softmax would do\n");
    return 2;
  }
  problem.isa = osm::find_isa(kIsa);
  if (!problem.isa) {
    std::fprintf(stderr, "count: this CPU lacks %s\n", kIsa);
    return 3;
  }
  const int64_t size = (int64_t)osm::dtype_size(problem.dtype), bytes = rows * cols * size;
  problem.ndim = 2, problem.shape[0] = rows, problem.shape[1] = cols, problem.reduced = 2;
  problem.x_strides[0] = problem.y_strides[0] = cols * size;
  problem.x_strides[1] = problem.y_strides[1] = size;
  const Pages x = pages(bytes), result = pages(reduces ? rows * 8 : in_place ? kPage : bytes);
  fill(x.get(), bytes, problem.dtype);
  problem.x = x.get();
  // Statistics as the Python module asks for them: float64 for float64, else float32.
  problem.single = problem.dtype != Dtype::f64;
  if (reduces)
    problem.first = result.get();
  else
    problem.y = in_place ? x.get() : result.get();
  for (int64_t i = 0; i < calls; ++i) osm::run(problem);
  return 0;
}

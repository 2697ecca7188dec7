#include "memory.h"

#include <pthread.h>
#include <sys/mman.h>

#include <mutex>
#include <vector>

namespace osm {
namespace {

constexpr int64_t kLarge = 2 << 20;

struct Piece {
  void* memory;
  int64_t size;
};

struct Store {
  std::mutex mutex;
  std::vector<Piece> free;  // oldest first
  int64_t kept = 0, limit = 512 << 20;
};

Store& store() {
  static Store* s = [] {
    auto* made = new Store;  // never destroyed: arrays may be released while the interpreter shuts down
    // A child forked while another thread held the lock must not find it held.
    pthread_atfork([] { store().mutex.lock(); }, [] { store().mutex.unlock(); }, [] { store().mutex.unlock(); });
    return made;
  }();
  return *s;
}

int64_t rounded(int64_t bytes) { return (bytes + kLarge - 1) / kLarge * kLarge; }

void shrink(Store& s) {
  while (s.kept > s.limit) {
    munmap(s.free.front().memory, (size_t)s.free.front().size);
    s.kept -= s.free.front().size;
    s.free.erase(s.free.begin());
  }
}

void* map_aligned(int64_t size) {
  void* raw = mmap(nullptr, (size_t)(size + kLarge), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  const uintptr_t start = (uintptr_t)raw, aligned = (start + kLarge - 1) / kLarge * kLarge;
  if (aligned > start) munmap(raw, aligned - start);
  const uintptr_t end = start + (uintptr_t)(size + kLarge), used = aligned + (uintptr_t)size;
  if (end > used) munmap((void*)used, end - used);
#ifdef MADV_HUGEPAGE
  madvise((void*)aligned, (size_t)size, MADV_HUGEPAGE);
#endif
  return (void*)aligned;
}

}  // namespace

void* result_alloc(int64_t bytes) {
  const int64_t size = rounded(bytes);
  Store& s = store();
  {
    std::lock_guard<std::mutex> lock(s.mutex);
    for (size_t i = s.free.size(); i-- > 0;)
      if (s.free[i].size == size) {
        void* memory = s.free[i].memory;
        s.kept -= size;
        s.free.erase(s.free.begin() + (std::ptrdiff_t)i);
        return memory;
      }
  }
  return map_aligned(size);
}

void result_free(void* memory, int64_t bytes) {
  const int64_t size = rounded(bytes);
  Store& s = store();
  std::lock_guard<std::mutex> lock(s.mutex);
  s.free.push_back({memory, size});
  s.kept += size;
  shrink(s);
}

int64_t result_kept() {
  Store& s = store();
  std::lock_guard<std::mutex> lock(s.mutex);
  return s.kept;
}
int64_t result_limit() {
  Store& s = store();
  std::lock_guard<std::mutex> lock(s.mutex);
  return s.limit;
}
void result_set_limit(int64_t bytes) {
  Store& s = store();
  std::lock_guard<std::mutex> lock(s.mutex);
  s.limit = bytes;
  shrink(s);
}

}  // namespace osm

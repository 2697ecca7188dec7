// Buffers that end exactly where their data ends, so that touching one byte too many shows.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

namespace tests {

// heap: the address sanitizer sees ordinary accesses past either end. It does not see non-temporal stores or masked
// loads, so `before` and `after` put the data next to a page that may not be touched at all.
enum class Where { heap, before, after };
// What this run uses: the heap alone where an emulator reads the whole of a masked load.
inline std::vector<Where> wheres = {Where::heap, Where::before, Where::after};
inline Where end_of_memory() { return wheres.size() > 1 ? Where::before : Where::heap; }

class Buffer {
 public:
  // `align` applies to the heap and to `after`; `before` is aligned as the size makes it.
  explicit Buffer(int64_t bytes, Where where = Where::heap, size_t align = 16) : bytes_(bytes), align_(align) {
    if (where == Where::heap) {
      data_ = static_cast<char*>(::operator new((size_t)bytes, std::align_val_t(align)));
    } else {
      const int64_t page = sysconf(_SC_PAGESIZE), pages = (bytes + page - 1) / page;
      mapped_ = (size_t)((pages + 1) * page);
      map_ = static_cast<char*>(mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
      if (map_ == MAP_FAILED) std::abort();
      char* wall = where == Where::before ? map_ + pages * page : map_;
      if (mprotect(wall, (size_t)page, PROT_NONE)) std::abort();
      data_ = where == Where::before ? wall - bytes : wall + page;
    }
    std::memset(data_, 0x55, (size_t)bytes);
  }
  ~Buffer() {
    if (map_)
      munmap(map_, mapped_);
    else
      ::operator delete(data_, std::align_val_t(align_));
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  int64_t bytes_;
  size_t align_;
  char* data_ = nullptr;
  char* map_ = nullptr;
  size_t mapped_ = 0;
};

}  // namespace tests

// Memory for results: large pages where the kernel of the operating system gives them, kept in a pool when released.
// A fresh 128 MiB array from the ordinary allocator costs more in page faults than its softmax does.
#pragma once
#include <cstdint>

namespace osm {

void* result_alloc(int64_t bytes);  // 2 MiB aligned; null where there is no memory
void result_free(void* memory, int64_t bytes);

int64_t result_kept();                 // bytes held for reuse
int64_t result_limit();                // the most that is held
void result_set_limit(int64_t bytes);  // and what is over it is given back at once

}  // namespace osm

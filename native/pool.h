// Threads that share the items of a job. One job at a time: a caller that finds the pool taken does its work alone, so
// many Python threads at once never oversubscribe and never share anything.
#pragma once
#include <cstdint>
#include <functional>

namespace osm {

// Calls work(i) for i in [0, items), on up to `threads` threads, the caller among them. Items are claimed one by one:
// a thread that is held up (another process on its core) keeps one item, and the others do the rest.
void parallel_for(int64_t items, int threads, const std::function<void(int64_t)>& work);

int usable_cores();

// Scratch of the calling thread, 64-byte aligned, at least `bytes` long; the next call may reuse it. Freed with the
// thread.
char* thread_scratch(int64_t bytes);

}  // namespace osm

#include "pool.h"

#include <pthread.h>
#if defined(__linux__)
#include <sched.h>
#endif

#include <atomic>
#include <cfenv>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace osm {
namespace {

// Scratch above this is given back when a thread has done its part of a job.
constexpr int64_t kScratchKept = 16 << 20;

struct Scratch {
  void* memory = nullptr;
  int64_t size = 0;
  ~Scratch() { std::free(memory); }
  void clear() {
    std::free(memory);
    memory = nullptr, size = 0;
  }
};
thread_local Scratch scratch;

struct Job {
  const std::function<void(int64_t)>* work;
  int64_t items;
  // The caller's rounding mode and flushing of subnormal numbers, which its helpers take on: a thread has those of the
  // call that it was started in, and results would depend on who worked.
  std::fenv_t arithmetic;
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;  // the first; it ends the claiming, and the caller gets it when all threads are out
};

void claim_all(Job& job) {
  try {
    for (int64_t i; (i = job.next.fetch_add(1, std::memory_order_relaxed)) < job.items;) (*job.work)(i);
  } catch (...) {
    std::lock_guard<std::mutex> lock(job.mutex);
    if (!job.error) job.error = std::current_exception();
    job.next.store(job.items);
  }
  if (scratch.size > kScratchKept) scratch.clear();
}

class Pool {
 public:
  // False where another caller has the pool.
  bool run(Job& job, int threads) {
    std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
    if (!turn.owns_lock()) return false;
    std::fegetenv(&job.arithmetic);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      grow(threads - 1);
      job_ = &job;
      seats_ = threads - 1;
      ++round_;
    }
    wake_.notify_all();
    claim_all(job);
    std::unique_lock<std::mutex> lock(mutex_);
    job_ = nullptr;  // a thread that wakes late finds nothing; those inside finish their item
    if (inside_ > 0) {
      lock.unlock();
      for (int spin = 0; spin < 20000 && inside_seen_.load(std::memory_order_acquire) > 0; ++spin) pause();
      lock.lock();
      done_.wait(lock, [this] { return inside_ == 0; });
    }
    return true;
  }

 private:
  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  void grow(int wanted) {
    try {
      for (; count_ < wanted; ++count_) std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {
      // The system gives no more threads: those there are, and the caller, do the work.
    }
  }

  void serve() {
    uint64_t seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return round_ != seen; });
      seen = round_;
      Job* job = job_;
      if (!job || seats_ == 0) continue;
      --seats_;
      ++inside_;
      inside_seen_.store(inside_, std::memory_order_release);
      lock.unlock();
      std::fesetenv(&job->arithmetic);
      claim_all(*job);
      lock.lock();
      --inside_;
      inside_seen_.store(inside_, std::memory_order_release);
      if (inside_ == 0) done_.notify_one();
    }
  }

  std::mutex turn_, mutex_;
  std::condition_variable wake_, done_;
  Job* job_ = nullptr;
  uint64_t round_ = 0;
  int seats_ = 0, count_ = 0, inside_ = 0;
  std::atomic<int> inside_seen_{0};
};

// Never destroyed: its threads may outlive static destruction. A forked child has none of them and starts afresh.
std::atomic<Pool*> the_pool{nullptr};

Pool& pool() {
  static std::once_flag once;
  std::call_once(once, [] {
    the_pool = new Pool;
    pthread_atfork(nullptr, nullptr, [] { the_pool = new Pool; });
  });
  return *the_pool;
}

}  // namespace

void parallel_for(int64_t items, int threads, const std::function<void(int64_t)>& work) {
  if (items <= 0) return;
  if (threads > items) threads = (int)items;
  Job job;
  job.work = &work;
  job.items = items;
  if (threads <= 1 || !pool().run(job, threads)) claim_all(job);
  if (job.error) std::rethrow_exception(job.error);
}

int usable_cores() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  const unsigned n = std::thread::hardware_concurrency();
  return n ? (int)n : 1;
}

char* thread_scratch(int64_t bytes) {
  if (scratch.size < bytes) {
    scratch.clear();
    const size_t size = ((size_t)bytes + 4095) / 4096 * 4096;
    scratch.memory = std::aligned_alloc(4096, size);
    if (!scratch.memory) throw std::bad_alloc();
    scratch.size = (int64_t)size;
  }
  return (char*)scratch.memory;
}

}  // namespace osm

#include "pool.h"

#include <chrono>
#include <new>
#include <string>
#include <system_error>

#include "memory.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace skein {

namespace {

// Longer than the gap between two steps of a busy server, short enough to vanish in an idle one.
constexpr auto kSpinBeforePark = std::chrono::microseconds(200);
// About 10 µs: after that the thread we wait for has probably lost its core, perhaps to us.
constexpr int kSpinsBeforeYield = 400;

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Flushes denormals to zero while alive: decayed states would otherwise crawl through them.
class FlushDenormals {
 public:
#if defined(__x86_64__)
  FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  FlushDenormals() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" ::"r"(saved_ | (uint64_t{1} << 24)));
  }
  ~FlushDenormals() { asm volatile("msr fpcr, %0" ::"r"(saved_)); }

 private:
  uint64_t saved_;
#endif
};

}  // namespace

void Worker::barrier() {
  const int count = threads();
  if (count == 1) return;
  const uint32_t next = generation_ + 1;
  generation_ = next;
  if (pool_.arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count) {
    pool_.arrived_.store(0, std::memory_order_relaxed);
    pool_.generation_.store(next, std::memory_order_release);
    return;
  }
  for (int spins = 0; pool_.generation_.load(std::memory_order_acquire) != next; spins++) {
    if (spins < kSpinsBeforeYield) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
}

Pool::Pool(int threads) {
  workers_.reserve(threads);
  for (int i = 0; i < threads; i++) workers_.emplace_back(*this, i);
  for (auto& set : cursors_) set = std::vector<Cursor>(threads);
  threads_.reserve(threads - 1);
  try {
    for (int i = 1; i < threads; i++) threads_.emplace_back([this, i] { serve(i); });
  } catch (const std::system_error&) {
    const size_t started = threads_.size() + 1;
    // Those that run use this pool, whose destructor will not be called.
    stop();
    throw Failure(SK_NO_MEMORY, "the system refused to start thread " +
                                    std::to_string(started + 1) + " of " + std::to_string(threads) +
                                    "; ask for fewer threads");
  }
}

Pool::~Pool() { stop(); }

void Pool::stop() {
  stopping_.store(true);
  epoch_.fetch_add(1);
  {
    std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  for (auto& thread : threads_) thread.join();
}

void Pool::run_erased(Call call, void* body) {
  call_ = call;
  body_ = body;
  failed_.store(false, std::memory_order_relaxed);
  // Sequentially consistent with parked_: either we see the parked worker or it sees the new epoch.
  epoch_.fetch_add(1);
  if (parked_.load() > 0) {
    std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  {
    FlushDenormals flush;
    call(body, workers_[0]);
  }
  workers_[0].barrier();
  if (failed_.load(std::memory_order_relaxed)) throw std::bad_alloc();
}

void Pool::serve(int thread) {
  FlushDenormals flush;
  for (uint32_t seen = 0; wait_for_work(seen); seen++) {
    call_(body_, workers_[thread]);
    workers_[thread].barrier();
  }
}

/// False when the pool is going away.
bool Pool::wait_for_work(uint32_t seen) {
  const auto start = std::chrono::steady_clock::now();
  for (int spins = 1; epoch_.load(std::memory_order_acquire) == seen; spins++) {
    relax();
    if (spins % 64 != 0) continue;
    if (spins % kSpinsBeforeYield == 0) std::this_thread::yield();
    if (std::chrono::steady_clock::now() - start < kSpinBeforePark) continue;
    std::unique_lock lock(mutex_);
    parked_.fetch_add(1);
    wake_.wait(lock, [&] { return epoch_.load() != seen; });
    parked_.fetch_sub(1);
  }
  return !stopping_.load();
}

}  // namespace skein

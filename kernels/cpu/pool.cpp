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

/// Between two looks at what another thread is to change.
inline void pause(int spins) {
  if (spins >= kSpinsBeforeYield) {
    std::this_thread::yield();
    return;
  }
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

Pool::Pool(int threads) : cursors_(threads) {
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
  {
    std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  for (auto& thread : threads_) thread.join();
}

void Pool::run_erased(Body body) {
  body_ = body;
  failed_.store(false, std::memory_order_relaxed);
  over_.store(false, std::memory_order_relaxed);
  begin(0);
  if (parked_.load() > 0) {
    std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  FlushDenormals flush;
  while (!over_.load(std::memory_order_acquire)) {
    const uint32_t seen = number_.load(std::memory_order_acquire);
    take(0, seen);
    for (int spins = 0; number_.load(std::memory_order_acquire) == seen; spins++) {
      if (over_.load(std::memory_order_acquire)) break;
      pause(spins);
    }
  }
  if (failed_.load(std::memory_order_relaxed)) throw std::bad_alloc();
}

/// Describes the next phase that has items, or that there is none. Only one thread is here at a time.
void Pool::begin(int phase) {
  int64_t items = 0;
  for (; phase < body_.phases; phase++) {
    items = body_.items(body_.body, phase);
    if (items > 0) break;
  }
  const uint32_t number = number_.load(std::memory_order_relaxed);
  number_.store(number + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  phase_.store(phase, std::memory_order_relaxed);
  left_.store(items, std::memory_order_relaxed);
  items_.store(items, std::memory_order_relaxed);
  // Sequentially consistent with parked_: either run_erased sees who is parked, or that one sees this.
  number_.store(number + 2);
  // The next run may begin from here on.
  if (items == 0) over_.store(true, std::memory_order_release);
}

/// Takes what there is of the phase of this number; nothing once it is over. Every thread begins
/// with its own contiguous share and goes on with the others'.
void Pool::take(int thread, uint32_t number) {
  const int phase = phase_.load(std::memory_order_relaxed);
  const int64_t items = items_.load(std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  // Else what was read may be of two phases.
  if (number % 2 != 0 || number_.load(std::memory_order_relaxed) != number) return;
  int64_t done = 0;
  for (int step = 0; step < threads(); step++)
    done += take_share(thread, (thread + step) % threads(), number, phase, items);
  if (done > 0 && left_.fetch_sub(done, std::memory_order_acq_rel) == done) begin(phase + 1);
}

/// An item that is had belongs to a phase that is not over, and is run before that ends; so a thread
/// that comes too late touches nothing but the cursors.
int64_t Pool::take_share(int thread, int owner, uint32_t number, int phase, int64_t items) {
  const int64_t first = items * owner / threads();
  const uint64_t count = static_cast<uint64_t>(items * (owner + 1) / threads() - first);
  auto& taken = cursors_[owner].taken;
  int64_t done = 0;
  uint64_t seen = taken.load(std::memory_order_acquire);
  while (true) {
    const bool is_begun = static_cast<uint32_t>(seen >> 32) == number;
    const uint64_t next = is_begun ? seen & 0xffffffff : 0;
    if (next >= count) break;
    // Of an earlier phase, then, unless this one is over.
    if (!is_begun && number_.load(std::memory_order_relaxed) != number) break;
    const uint64_t mine = (uint64_t{number} << 32) + next + 1;
    if (!taken.compare_exchange_weak(seen, mine, std::memory_order_acq_rel)) continue;
    try {
      body_.each(body_.body, phase, first + static_cast<int64_t>(next), thread);
    } catch (...) {
      failed_.store(true, std::memory_order_relaxed);
    }
    done++;
    seen = taken.load(std::memory_order_acquire);
  }
  return done;
}

void Pool::serve(int thread) {
  FlushDenormals flush;
  for (uint32_t seen = 0; wait_for_phase(seen);) {
    seen = number_.load(std::memory_order_acquire);
    take(thread, seen);
  }
}

/// Until there is another phase than that; false when the pool is going away.
bool Pool::wait_for_phase(uint32_t seen) {
  auto since = std::chrono::steady_clock::now();
  for (int spins = 1; number_.load(std::memory_order_acquire) == seen; spins++) {
    pause(spins);
    if (stopping_.load(std::memory_order_relaxed)) return false;
    if (spins % 64 != 0) continue;
    const auto now = std::chrono::steady_clock::now();
    // A phase that takes long is no idle time.
    if (items_.load(std::memory_order_relaxed) > 0) since = now;
    if (now - since < kSpinBeforePark) continue;
    std::unique_lock lock(mutex_);
    parked_.fetch_add(1);
    wake_.wait(lock, [&] { return number_.load() != seen || stopping_.load(); });
    parked_.fetch_sub(1);
  }
  return !stopping_.load();
}

}  // namespace skein

#include "pool.h"

#include <chrono>
#include <new>
#include <set>
#include <string>
#include <system_error>

#include "memory.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace skein {

namespace {

// Longer than the gap between two steps of a busy server, short enough to be negligible in an idle
// one.
constexpr auto kSpinBeforePark = std::chrono::microseconds(200);
// Longer than most items take. After that the thread we wait for has lost its core. A thread that
// spins keeps its own core busy, so the system does not move the other thread there; when it parks,
// its core is idle and the other thread gets it at once.
constexpr auto kSpinInPhase = std::chrono::microseconds(500);
// About 10 µs. After that the thread we wait for has probably lost its core, perhaps to us.
constexpr int kSpinsBeforeYield = 400;

/// Waits a moment between two polls of a variable that another thread changes.
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

/// Flushes denormals to zero during its lifetime. Decaying states would otherwise become denormal,
/// and slow.
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

/// The pools of this process.
struct Pools {
  std::mutex mutex;
  std::set<const Pool*> all;
};

Pools& pools() {
  static Pools pools;
  return pools;
}

}  // namespace

Pool::Pool(int threads) : cursors_(threads) {
  threads_.reserve(threads - 1);
  try {
    for (int i = 1; i < threads; i++) threads_.emplace_back([this, i] { serve(i); });
  } catch (const std::system_error&) {
    const size_t started = threads_.size() + 1;
    // The threads already started use this pool, and its destructor will not run.
    stop();
    throw Failure(SK_NO_MEMORY, "the system refused to start thread " +
                                    std::to_string(started + 1) + " of " + std::to_string(threads) +
                                    "; ask for fewer threads");
  }
  std::lock_guard lock(pools().mutex);
  pools().all.insert(this);
}

Pool::~Pool() {
  {
    std::lock_guard lock(pools().mutex);
    pools().all.erase(this);
  }
  stop();
}

uint32_t Pool::progress() {
  std::lock_guard lock(pools().mutex);
  uint64_t sum = 0;
  for (const Pool* pool : pools().all) sum += pool->taken();
  return static_cast<uint32_t>(sum ^ (sum >> 32));
}

/// Only grows: a cursor has the phase above the items that are taken of it.
uint64_t Pool::taken() const {
  uint64_t sum = number_.load(std::memory_order_relaxed);
  for (const Cursor& cursor : cursors_) sum += cursor.taken.load(std::memory_order_relaxed);
  return sum;
}

void Pool::stop() {
  stopping_.store(true);
  {
    std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  for (auto& thread : threads_) thread.join();
}

void Pool::start(Work& work) {
  work_ = &work;
  failed_.store(false, std::memory_order_relaxed);
  over_.store(false, std::memory_order_relaxed);
  begin(0);
}

void Pool::finish() {
  FlushDenormals flush;
  Soon soon;
  while (!over_.load(std::memory_order_acquire)) {
    const uint32_t seen = number_.load(std::memory_order_acquire);
    take(0, seen, soon);
    wait_for_phase(seen, true, soon);
  }
  if (failed_.load(std::memory_order_relaxed)) throw std::bad_alloc();
}

/// Publishes the next phase that has items, or the end of the run. Only one thread at a time is
/// here.
void Pool::begin(int phase) {
  int64_t items = 0;
  for (; phase < work_->phases(); phase++) {
    items = work_->items(phase);
    if (items > 0) break;
  }
  const uint32_t number = number_.load(std::memory_order_relaxed);
  number_.store(number + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  phase_.store(phase, std::memory_order_relaxed);
  left_.store(items, std::memory_order_relaxed);
  items_.store(items, std::memory_order_relaxed);
  // Sequentially consistent with parked_: either this thread sees the parked thread, or that thread
  // sees these stores.
  number_.store(number + 2);
  // From here on, the next run may begin.
  if (items == 0) over_.store(true);
  if (parked_.load() > 0) {
    std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
}

/// Runs the items that are left of phase `number`; does nothing once it is over. Every thread
/// begins with its own contiguous share, then helps with the shares of the others.
void Pool::take(int thread, uint32_t number, Soon& soon) {
  const int phase = phase_.load(std::memory_order_relaxed);
  const int64_t items = items_.load(std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  // Otherwise the values read may belong to two different phases.
  if (number % 2 != 0 || number_.load(std::memory_order_relaxed) != number) return;
  int64_t done = 0;
  for (int step = 0; step < threads(); step++)
    done += take_share(thread, (thread + step) % threads(), number, phase, items);
  if (done == 0) return;
  // Asked while this thread still holds the phase open. What is fetched already stays fetched.
  const Soon next = work_->soon(phase, thread);
  if (next.end != soon.end) soon = next;
  if (left_.fetch_sub(done, std::memory_order_acq_rel) == done) begin(phase + 1);
}

/// A thread that takes an item holds its phase open until the item is done. So a thread that comes
/// too late touches nothing but the cursors.
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
    // Then the cursor is that of an earlier phase, unless phase `number` is over.
    if (!is_begun && number_.load(std::memory_order_relaxed) != number) break;
    const uint64_t mine = (uint64_t{number} << 32) + next + 1;
    if (!taken.compare_exchange_weak(seen, mine, std::memory_order_acq_rel)) continue;
    try {
      work_->each(phase, first + static_cast<int64_t>(next), thread);
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
  Soon soon;
  for (uint32_t seen = 0; wait_for_phase(seen, false, soon);) {
    seen = number_.load(std::memory_order_acquire);
    take(thread, seen, soon);
  }
}

/// Waits for another phase than `seen` or, in the thread that began the run, for its end; returns
/// false when the pool stops.
bool Pool::wait_for_phase(uint32_t seen, bool is_first, Soon& soon) {
  const auto is_waiting = [&] {
    return number_.load() == seen && !(is_first && over_.load()) && !stopping_.load();
  };
  const auto since = std::chrono::steady_clock::now();
  for (; soon.at < soon.end && is_waiting();) soon.fetch();
  for (int spins = 1; is_waiting(); spins++) {
    pause(spins);
    if (spins % 64 != 0) continue;
    const bool is_phase = items_.load(std::memory_order_relaxed) > 0;
    if (std::chrono::steady_clock::now() - since < (is_phase ? kSpinInPhase : kSpinBeforePark))
      continue;
    std::unique_lock lock(mutex_);
    parked_.fetch_add(1);
    wake_.wait(lock, [&] { return !is_waiting(); });
    parked_.fetch_sub(1);
  }
  return !stopping_.load();
}

}  // namespace skein

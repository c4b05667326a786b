// The thread pool. The caller is thread 0; every thread runs the same body and meets the others at
// barriers. Workers spin for a while after a run, then park, so that an idle server uses no CPU.
// Knows nothing of ops.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace skein {

class Pool;

/// One thread of the pool, as a body sees it.
class Worker {
 public:
  Worker(Pool& pool, int thread) : pool_(pool), thread_(thread) {}
  int thread() const { return thread_; }
  int threads() const;

  /// Runs f(item) once for every item of [0, items) over all threads, then waits for all of them.
  /// Every thread takes from its own contiguous share first and from the others' when it is done,
  /// so that a core which something else is using does not hold up the rest. Which thread runs an
  /// item never changes its result.
  template <class F>
  void each(int64_t items, F&& f);

 private:
  friend class Pool;
  void barrier();

  Pool& pool_;
  const int thread_;
  uint32_t phase_ = 0;       // calls of each() so far, equal on all threads between barriers
  uint32_t generation_ = 0;  // barriers passed
};

class Pool {
 public:
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()); }

  /// body(worker) on every thread; returns when all are done. Throws when an item threw.
  template <class Body>
  void run(Body&& body) {
    run_erased([](void* f, Worker& worker) { (*static_cast<Body*>(f))(worker); }, &body);
  }

 private:
  friend class Worker;
  using Call = void (*)(void* body, Worker& worker);
  struct alignas(64) Cursor {
    std::atomic<int64_t> next{0};
  };

  void run_erased(Call call, void* body);
  void stop();
  void serve(int thread);
  bool wait_for_work(uint32_t seen);

  std::vector<Worker> workers_;
  std::vector<std::thread> threads_;
  // Items taken of each thread's share; two sets, so that one is cleared while the other is in use.
  std::vector<Cursor> cursors_[2];

  Call call_ = nullptr;
  void* body_ = nullptr;
  alignas(64) std::atomic<uint32_t> epoch_{0};       // runs started
  alignas(64) std::atomic<uint32_t> generation_{0};  // barriers completed
  alignas(64) std::atomic<int> arrived_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> failed_{false};
  std::atomic<int> parked_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

inline int Worker::threads() const { return pool_.threads(); }

template <class F>
void Worker::each(int64_t items, F&& f) {
  if (items <= 0) return;
  const int count = threads();
  auto& cursors = pool_.cursors_[phase_ & 1];
  for (int step = 0; step < count; step++) {
    const int owner = (thread_ + step) % count;
    const int64_t first = items * owner / count;
    const int64_t end = items * (owner + 1) / count;
    while (true) {
      const int64_t item = first + cursors[owner].next.fetch_add(1, std::memory_order_relaxed);
      if (item >= end) break;
      try {
        f(item);
      } catch (...) {
        pool_.failed_.store(true, std::memory_order_relaxed);
      }
    }
  }
  phase_++;
  pool_.cursors_[phase_ & 1][thread_].next.store(0, std::memory_order_relaxed);
  barrier();
}

}  // namespace skein

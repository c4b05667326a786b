// The thread pool. A run has phases, one after another; each phase has items, and any thread may
// take any item. The caller is thread 0, and may come later than the others. The thread that
// finishes the last item of a phase begins the next one, so a thread that has lost its core delays
// only the item it is running. After a run, threads spin for a while and then park, so an idle
// server uses no CPU. Knows no ops.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace skein {

/// Bytes that a thread will read soon, so it fetches them into its cache while it has to wait.
struct Soon {
  const uint8_t *at = nullptr, *end = nullptr;

  /// Requests four cache lines.
  void fetch() {
    for (int i = 0; i < 4 && at < end; i++, at += 64) __builtin_prefetch(at, 0, 2);
  }
};

/// What a run does. The result of an item never depends on the thread.
struct Work {
  virtual ~Work() = default;
  virtual int phases() const = 0;
  virtual int64_t items(int phase) const = 0;
  virtual void each(int phase, int64_t item, int thread) = 0;
  /// What a thread that ran items of the phase will read after it.
  virtual Soon soon(int /*phase*/, int /*thread*/) { return {}; }
};

class Pool {
 public:
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return static_cast<int>(threads_.size()) + 1; }

  /// A number that changes with every item that any pool of the process begins. For any thread.
  static uint32_t progress();

  /// Begins a run: each(phase, item, thread) is called once for every item of every phase. The other
  /// threads work on it at once, the caller in finish(). `work` lives until then.
  void start(Work& work);

  /// Returns when the run is over. Throws if an item threw.
  void finish();

  /// No run has begun that is not over.
  bool is_idle() const { return over_.load(); }

  /// Runs a single phase: each(item, thread).
  template <class Each>
  void run(int64_t items, Each&& each) {
    struct Single final : Work {
      int64_t num_items;
      Each& body;
      Single(int64_t n, Each& f) : num_items(n), body(f) {}
      int phases() const override { return 1; }
      int64_t items(int) const override { return num_items; }
      void each(int, int64_t item, int thread) override { body(item, thread); }
    } single(items, each);
    start(single);
    finish();
  }

 private:
  /// The phase number (upper 32 bits), and how many items of a thread's share are taken (lower 32
  /// bits).
  struct alignas(64) Cursor {
    std::atomic<uint64_t> taken{0};
  };

  void begin(int phase);
  void take(int thread, uint32_t phase, Soon& soon);
  int64_t take_share(int thread, int owner, uint32_t number, int phase, int64_t items);
  void serve(int thread);
  bool wait_for_phase(uint32_t seen, bool is_first, Soon& soon);
  void stop();
  uint64_t taken() const;

  std::vector<std::thread> threads_;
  std::vector<Cursor> cursors_;
  Work* work_ = nullptr;
  /// The number of the current phase, counted over all runs in steps of two. Odd while the fields
  /// below are being written.
  alignas(64) std::atomic<uint32_t> number_{0};
  /// The index of that phase in its run, and its number of items; 0 items between runs.
  std::atomic<int> phase_{0};
  std::atomic<int64_t> items_{0};
  /// Items of the phase that are not done yet.
  alignas(64) std::atomic<int64_t> left_{0};
  std::atomic<bool> over_{true};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> failed_{false};
  std::atomic<int> parked_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace skein

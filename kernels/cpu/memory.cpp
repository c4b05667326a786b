#include "memory.h"

#include <sys/mman.h>

#include <new>

namespace skein {

namespace {
constexpr size_t kHugePage = size_t{2} << 20;

struct LastError {
  sk_status status = SK_OK;
  char message[512] = "";
};
thread_local LastError last_error;
}  // namespace

void set_last_error(sk_status status, const char* message) noexcept {
  last_error.status = status;
  std::strncpy(last_error.message, message, sizeof last_error.message - 1);
}

Buffer::Buffer(size_t bytes) : size_(bytes) {
  if (bytes < kHugePage) {
    base_ = data_ =
        std::aligned_alloc(64, static_cast<size_t>(round_up(static_cast<int64_t>(bytes) + 1, 64)));
    if (data_ == nullptr) throw std::bad_alloc();
    std::memset(data_, 0, bytes);
    return;
  }
  mapped_ = bytes + kHugePage;
  base_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base_ == MAP_FAILED) {
    base_ = nullptr;
    mapped_ = 0;
    throw Failure(SK_NO_MEMORY,
                  "the system refused " + std::to_string(bytes >> 20) + " MiB of memory");
  }
  const uintptr_t aligned = (reinterpret_cast<uintptr_t>(base_) + kHugePage - 1) & ~(kHugePage - 1);
  data_ = reinterpret_cast<void*>(aligned);
#if defined(MADV_HUGEPAGE)
  madvise(data_, bytes, MADV_HUGEPAGE);  // a wish: refusal costs only speed
#endif
}

Buffer::~Buffer() {
  if (mapped_ != 0) {
    munmap(base_, mapped_);
  } else {
    std::free(base_);
  }
}

}  // namespace skein

extern "C" int32_t sk_last_status(void) { return skein::last_error.status; }
extern "C" const char* sk_last_error(void) { return skein::last_error.message; }

#include "memory.h"

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <sys/mman.h>
#endif

#include <algorithm>
#include <new>

namespace skein {

namespace {
constexpr size_t kHugePage = size_t{2} << 20;
/// What an arena maps at a time. Only pages that are touched take memory, except on Windows.
#if defined(_WIN32)
constexpr size_t kChunk = kHugePage;
#else
constexpr size_t kChunk = 64 * kHugePage;
#endif
constexpr std::align_val_t kCacheLine{64};

/// Maps zeroed pages; null if the system refuses.
void* map_pages(size_t bytes) {
#if defined(_WIN32)
  return VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
#else
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return pages == MAP_FAILED ? nullptr : pages;
#endif
}

void unmap_pages(void* pages, [[maybe_unused]] size_t bytes) {
#if defined(_WIN32)
  VirtualFree(pages, 0, MEM_RELEASE);
#else
  munmap(pages, bytes);
#endif
}

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
    base_ = data_ = ::operator new(bytes + 1, kCacheLine);
    std::memset(data_, 0, bytes);
    return;
  }
  mapped_ = bytes + kHugePage;
  base_ = map_pages(mapped_);
  if (base_ == nullptr) {
    mapped_ = 0;
    throw Failure(SK_NO_MEMORY,
                  "the system refused " + std::to_string(bytes >> 20) + " MiB of memory");
  }
  const uintptr_t aligned = (reinterpret_cast<uintptr_t>(base_) + kHugePage - 1) & ~(kHugePage - 1);
  data_ = reinterpret_cast<void*>(aligned);
#if defined(MADV_HUGEPAGE)
  madvise(data_, bytes, MADV_HUGEPAGE);  // only a hint: if refused, memory is slower
#endif
}

Buffer::~Buffer() {
  if (mapped_ != 0) {
    unmap_pages(base_, mapped_);
  } else {
    ::operator delete(base_, kCacheLine);
  }
}

uint8_t* Arena::take(size_t bytes) {
  bytes = (bytes + 63) & ~size_t{63};
  if (chunks_.empty() || chunks_.back().size() - used_ < bytes) {
    chunks_.emplace_back(std::max(kChunk, (bytes + kHugePage - 1) & ~(kHugePage - 1)));
    used_ = 0;
  }
  used_ += bytes;
  return chunks_.back().as<uint8_t>() + used_ - bytes;
}

}  // namespace skein

extern "C" int32_t sk_last_status(void) { return skein::last_error.status; }
extern "C" const char* sk_last_error(void) { return skein::last_error.message; }

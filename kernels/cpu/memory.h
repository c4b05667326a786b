// Memory buffers with an owner, and error reporting. Does not know what the buffers hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "skein.h"

namespace skein {

/// An error on its way to the ABI boundary, where `guard` turns it into a status.
struct Failure : std::runtime_error {
  sk_status status;
  Failure(sk_status s, const std::string& message) : std::runtime_error(message), status(s) {}
};

/// Throws a Failure with `status` unless `condition` holds.
inline void require(bool condition, const char* message, sk_status status = SK_INVALID) {
  if (!condition) throw Failure(status, message);
}

/// Records an error for sk_last_status and sk_last_error of this thread.
void set_last_error(sk_status status, const char* message) noexcept;

/// Runs `body` at the ABI boundary. No exception leaves it.
template <class Body>
int32_t guard(Body&& body) noexcept {
  try {
    body();
    return SK_OK;
  } catch (const Failure& failure) {
    set_last_error(failure.status, failure.what());
    return failure.status;
  } catch (const std::bad_alloc&) {
    set_last_error(SK_NO_MEMORY, "out of memory");
    return SK_NO_MEMORY;
  } catch (const std::exception& error) {
    set_last_error(SK_INTERNAL, error.what());
    return SK_INTERNAL;
  }
}

/// Like guard, for functions that return a pointer: null on failure.
template <class Body>
auto guard_pointer(Body&& body) noexcept -> decltype(body()) {
  decltype(body()) result = nullptr;
  guard([&] { result = body(); });
  return result;
}

/// Zeroed bytes, aligned to 64. Large buffers use 2 MB pages where the system grants them. Pages
/// that are never touched take no memory.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(base_, other.base_);
    std::swap(mapped_, other.mapped_);
    return *this;
  }

  size_t size() const { return size_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
  void* base_ = nullptr;  // the allocation; data_ is base_ aligned up
  size_t mapped_ = 0;     // bytes mapped at base_; 0 if it came from operator new
};

/// Zeroed bytes side by side on 2 MB pages, aligned to 64, until the arena is freed. A Buffer has
/// such pages only for the whole multiples of 2 MB in it.
class Arena {
 public:
  uint8_t* take(size_t bytes);

 private:
  std::vector<Buffer> chunks_;
  size_t used_ = 0;  // of the last chunk
};

inline int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}
inline int64_t div_up(int64_t n, int64_t d) { return (n + d - 1) / d; }

}  // namespace skein

// Memory that a thread keeps between calls, so that kernels allocate nothing while they run.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <new>

namespace selvage {

// A block of memory, at a cache line. It grows and never shrinks; what it held is lost when it grows.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { std::free(memory_); }

  template <typename Number>
  Number* take(int64_t count) {
    const size_t bytes = (static_cast<size_t>(count) * sizeof(Number) + LINE - 1) / LINE * LINE;
    if (bytes > size_) {
      std::free(memory_);
      size_ = 0;
      memory_ = std::aligned_alloc(LINE, bytes);
      if (memory_ == nullptr) throw std::bad_alloc();
      size_ = bytes;
    }
    return static_cast<Number*>(memory_);
  }

 private:
  static constexpr size_t LINE = 64;
  void* memory_ = nullptr;
  size_t size_ = 0;
};

}  // namespace selvage

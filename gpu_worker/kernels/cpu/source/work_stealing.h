// Products that a thread computes block of outputs by block, and of which threads without work take some (work stealing:
// Blumofe and Leiserson, 1999).
#pragma once
#include <ATen/Parallel.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "layer.h"

namespace selvage {

// Calls `end` where a scope ends, also by an exception.
template <typename End>
struct AtEnd {
  End end;
  ~AtEnd() { end(); }
};

// Waits for another thread: spins for as long as most waits take and as OpenMP's threads do, then lets whoever wants the core
// have it, and sleeps if even that takes long. The other thread may have lost its core, and this one may hold what it needs.
class Pause {
 public:
  void wait() {
    if (++waits_ <= SPINS) return spin();
    if (waits_ <= SPINS + YIELDS) return std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

 private:
  static constexpr unsigned SPINS = 1'000, YIELDS = 1'000;  // up to some 50 microseconds, up to a millisecond
  unsigned waits_ = 0;
};

// The blocks of one piece of work after the other: outputs of a product, or rows between two products. Their owner takes them
// from the front, as weights lie; thieves take them from the back.
class alignas(64) StealableBlocks {
 public:
  // Calls `work(block, step, workspace)` once for each block from 0 to `count` - 1, here and in threads that steal, and returns
  // when all have ended. `step`: 1, and -1 in a thief; a thread's next block is probably that many further.
  template <typename Work>
  void run(int64_t count, Workspace& workspace, const Work& work) {
    TORCH_CHECK(count <= UINT16_MAX, "there are ", count, " blocks of outputs or rows, more than ", UINT16_MAX);
    work_ = &work;
    call_ = [](const void* of, int64_t block, int64_t step, Workspace& memory) {
      (*static_cast<const Work*>(of))(block, step, memory);
    };
    ended_.store(0, std::memory_order_relaxed);
    left_.store({++product_, 0, static_cast<uint16_t>(count)}, std::memory_order_release);
    const AtEnd all_ended{[&] {
      while (take(1) >= 0) ended_.fetch_add(1, std::memory_order_relaxed);  // some are left if one threw
      for (Pause pause; ended_.load(std::memory_order_acquire) < count;) pause.wait();
    }};
    while (compute(1, workspace)) continue;
  }

  // Computes a block for its owner; false if none is left.
  bool steal(Workspace& workspace) { return compute(-1, workspace); }

 private:
  // Blocks `first` to `last` - 1 are left of a product. Its number is another one after each `run`, so that a thief that looked
  // before it takes none of the next.
  struct Left {
    uint32_t product;
    uint16_t first, last;
  };

  // A block that is no longer left then, or -1.
  int64_t take(int64_t step) {
    Left left = left_.load(std::memory_order_acquire), rest;
    do {
      if (left.first >= left.last) return -1;
      rest = left;
      step > 0 ? rest.first++ : rest.last--;
    } while (!left_.compare_exchange_weak(left, rest, std::memory_order_acq_rel, std::memory_order_acquire));
    return step > 0 ? left.first : rest.last;
  }

  bool compute(int64_t step, Workspace& workspace) {
    const int64_t block = take(step);
    if (block < 0) return false;
    const AtEnd ended{[&] { ended_.fetch_add(1, std::memory_order_release); }};
    call_(work_, block, step, workspace);
    return true;
  }

  using Call = void (*)(const void* work, int64_t block, int64_t step, Workspace& workspace);
  const void* work_ = nullptr;
  Call call_ = nullptr;
  uint32_t product_ = 0;
  std::atomic<Left> left_{Left{}};
  std::atomic<int64_t> ended_{0};
};

// Calls `work(task, blocks, workspace)` once for each task, in PyTorch's threads. A thread for which no task is left steals
// from the `blocks` of others. Exceptions reach the caller.
template <typename Work>
void share_stealable(int64_t tasks, const Work& work) {
  std::vector<StealableBlocks> products(tasks);
  std::atomic<int64_t> taken{0}, ended{0};
  at::parallel_for(0, at::get_num_threads(), 1, [&](int64_t, int64_t) {
    const ProductsOfRegion<BFloat16> of_region;
    thread_local Workspace workspace;
    for (int64_t task; (task = taken.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
      const AtEnd counted{[&] { ended.fetch_add(1, std::memory_order_release); }};
      work(task, products[task], workspace);
    }
    for (Pause pause; ended.load(std::memory_order_acquire) < tasks; pause.wait()) {
      for (StealableBlocks& blocks : products) {
        while (blocks.steal(workspace)) continue;
      }
    }
  });
}

}  // namespace selvage

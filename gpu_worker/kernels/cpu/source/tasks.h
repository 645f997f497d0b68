// Tasks of different sizes, shared among PyTorch's threads in runs of neighbours that cost about the same.
#pragma once
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

namespace selvage {

constexpr int64_t RUNS_BY_THREAD = 8;  // so many runs a thread: few enough to be long, enough for all to end together

// Calls `work(next)` in as many of PyTorch's threads as there are runs. There `next()` gives the next run, as the
// numbers of its first task and of the one behind its last, until it gives an empty one. `costs`: of each task, in any
// unit. Exceptions reach the caller.
template <typename Work>
void share_tasks(const std::vector<int64_t>& costs, const Work& work) {
  const auto count = static_cast<int64_t>(costs.size());
  const int64_t threads = std::min<int64_t>(count, at::get_num_threads());
  int64_t total = 0;
  for (const int64_t cost : costs) total += cost;
  const int64_t runs = std::max<int64_t>(threads * RUNS_BY_THREAD, 1), share = (total + runs - 1) / runs;
  std::vector<int64_t> ends;
  int64_t cost = 0;
  for (int64_t task = 0; task < count; task++) {
    cost += costs[task];
    if (cost >= share || task + 1 == count) ends.push_back(task + 1), cost = 0;
  }
  std::atomic<size_t> taken{0};
  const auto next = [&]() -> std::pair<int64_t, int64_t> {
    const size_t run = taken.fetch_add(1, std::memory_order_relaxed);
    if (run >= ends.size()) return {count, count};
    return {run == 0 ? 0 : ends[run - 1], ends[run]};
  };
  at::parallel_for(0, std::min<int64_t>(threads, ends.size()), 1, [&](int64_t, int64_t) { work(next); });
}

}  // namespace selvage

// What all layers share: blocks of rows, a thread's memory, and the number formats that layers have.
#pragma once
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>

#include "linear.h"
#include "scratch.h"

namespace selvage {

constexpr int64_t MOST_ROWS = 64;  // rows of a block of one product; those of a whole layer may have more
constexpr int64_t LEAST_ROWS = 8;  // of a block in the mean: fewer would read the weights for too little work

struct Workspace {
  Scratch input, products, hidden, inner, sums, residuals;
};

// Bytes of weights that a cache holds which cores share. Vectors wait little for them where each block of rows reads them once
// more; matrix units would wait.
constexpr int64_t CACHED_BYTES = 6 << 20;
constexpr int64_t TILE_ROWS = 6;                // rows of a product's tile for blocks of 64 outputs
constexpr int64_t SHORT_BLOCK = 4 * TILE_ROWS;  // rows, about, of a block that reads such weights once more
constexpr int64_t FEWEST_SHORT = 4;             // short blocks of a thread: with fewer, threads would not end together
constexpr int64_t MOST_SHORT = 8;               // enough for threads to end together

// Rows cut into blocks whose sizes differ by one step at most, the longer ones first, so that threads end together.
struct RowBlocks {
  int64_t rows, count, step;

  // Blocks of about `most` rows or fewer. `reads_again`: each block may read the weights once more. Then a thread has several
  // blocks, and the other threads take some of them while another program has its core.
  RowBlocks(int64_t all, int64_t threads, int64_t most, bool reads_again) : rows(all), step(ROW_STEP) {
    const int64_t share = (rows + threads - 1) / threads;
    int64_t of_thread = (share + most - 1) / most;
    if (reads_again && threads > 1 && share >= FEWEST_SHORT * SHORT_BLOCK) {
      of_thread = std::max(of_thread, std::min(share / SHORT_BLOCK, MOST_SHORT)), step = TILE_ROWS;
    }
    count = std::min(threads * of_thread, (rows + LEAST_ROWS - 1) / LEAST_ROWS);
  }

  // The first row of a block; that of the block behind the last one is the number of rows.
  int64_t first(int64_t block) const {
    const int64_t steps = (rows + step - 1) / step;
    return std::min(rows, step * (block * (steps / count) + std::min(block, steps % count)));
  }
  int64_t size(int64_t block) const { return first(block + 1) - first(block); }
};

inline Activation activation_of(int64_t number) {
  TORCH_CHECK(number >= 0 && number <= static_cast<int64_t>(Activation::SILU), "there is no activation ", number);
  return static_cast<Activation>(number);
}

// Calls `use` with a number of the format of `x` and one of the layers, which tell their types.
template <typename Use>
at::Tensor by_format(const at::Tensor& x, const at::Tensor& weight, const Use& use) {
  const bool quantized = weight.scalar_type() == at::kChar;
  TORCH_CHECK(quantized || x.scalar_type() == weight.scalar_type(), "number formats differ");
  if (x.scalar_type() == at::kFloat) {
    return quantized ? use.template operator()<float, QuantizedLinear<float>>() : use.template operator()<float, Linear<float>>();
  }
#ifdef CPU_CAPABILITY_AVX512
  if (x.scalar_type() == at::kBFloat16) {
    return quantized ? use.template operator()<BFloat16, QuantizedLinear<BFloat16>>()
                     : use.template operator()<BFloat16, Linear<BFloat16>>();
  }
#endif
  TORCH_CHECK(false, "layers take float32, and bfloat16 with AVX-512; this is ", x.scalar_type());
}

}  // namespace selvage

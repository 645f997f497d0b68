// What all layers share: blocks of rows, a thread's memory, and the number formats that layers have.
#pragma once
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>

#include "linear.h"
#include "scratch.h"
#include "split.h"

namespace selvage {

constexpr int64_t MOST_ROWS = 64;  // rows of a block of one product; those of a whole layer may have more
constexpr int64_t LEAST_ROWS = 8;  // fewer rows would read the weights for too little work

struct Workspace {
  Scratch input, products, hidden, inner, sums, residuals;
};

// Rows of a block, so that all of `threads` have blocks of the same size, and some where a step is small.
inline int64_t block_rows(int64_t rows, int64_t threads, int64_t most) {
  const int64_t share = (rows + threads - 1) / threads;
  const int64_t blocks = std::max<int64_t>((share + most - 1) / most, 1);  // of a thread
  return std::max(round_up((share + blocks - 1) / blocks, ROW_STEP), LEAST_ROWS);
}

inline Activation activation_of(int64_t number) {
  TORCH_CHECK(number >= 0 && number <= static_cast<int64_t>(Activation::SILU), "there is no activation ", number);
  return static_cast<Activation>(number);
}

// Calls `use` with a number of the format of `x` and one of the layers, which tell their types.
template <typename Use>
at::Tensor by_format(const at::Tensor& x, const at::Tensor& weight, const Use& use) {
#ifdef CPU_CAPABILITY_AVX512
  if (weight.dim() == 5) {  // weights in parts have a dimension more than those of all other layers
    TORCH_CHECK(x.scalar_type() == at::kFloat, "weights in parts are for float32; this is ", x.scalar_type());
    return use.template operator()<float, SplitLinear>();
  }
#endif
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

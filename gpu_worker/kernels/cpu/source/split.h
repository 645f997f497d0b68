// A linear layer in float32 by products of bfloat16, for processors that multiply those many times faster.
#pragma once
#include "linear.h"

namespace selvage {

#ifdef CPU_CAPABILITY_AVX512

// y = x W^T + b, where x = h + l and W = H + L: a number is its nearest bfloat16 and the nearest bfloat16 of the rest, off
// by 2^-18 of it at most. So x W^T is h H + h L + l H, with sums in float32; l L is left out, below 2^-18 of each product.
// A number above 3.39e38 has no nearest bfloat16: its row becomes infinite or NaN.
//
// Weights [outputs / block, 2, inputs / 2, block, 2]: in each block of outputs H, and L behind it. Rows are (l, h), so
// that one product of twice the depth makes l H + h L; h H is added to it, the large terms after the small ones.
struct SplitLinear : LayerShape {
  const BFloat16* weight;
  const float* bias;

  struct Input {
    const BFloat16* rows;
  };

  SplitLinear(const at::Tensor& weight, const at::Tensor& bias)
      : LayerShape(parts_together(weight), bias, TOGETHER<BFloat16>, 1),
        weight(weight.const_data_ptr<BFloat16>()),
        bias(bias.const_data_ptr<float>()) {
    inputs /= 2;
    TORCH_CHECK(inputs % 32 == 0, "a layer's sizes must be multiples of 32");
  }

  Input prepare(const float* x, int64_t stride, int64_t rows, Scratch& scratch) const {
    auto* parts = scratch.take<BFloat16>(2 * rows * inputs);
    for (int64_t row = 0; row < rows; row++) {
      BFloat16 *low = parts + 2 * row * inputs, *high = low + inputs;
      for (int64_t i = 0; i < inputs; i += WIDTH) {
        const Vector number = load(x + row * stride + i);
        store(high + i, number);
        store(low + i, number - load(high + i));
      }
    }
    return {parts};
  }

  template <typename Use>
  void run(const Input& x, int64_t rows, int64_t first, int64_t last, Scratch& scratch, const Use& use) const {
    float* products = scratch.take<float>(rows * block);
    const int64_t stride = 2 * inputs;
    for (int64_t part = first; part < last; part++) {
      const BFloat16* both = weight + part * block * stride;
      multiply(rows, block, stride, x.rows, stride, both, block, products, block, false);
      multiply(rows, block, inputs, x.rows + inputs, stride, both, block, products, block, true);
      for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < block; i += WIDTH) {
          const int64_t column = part * block + i;
          use(row, column, load(products + row * block + i) + load(bias + column));
        }
      }
    }
  }

 private:
  static at::Tensor parts_together(const at::Tensor& weight) {
    TORCH_CHECK(weight.dim() == 5 && weight.size(1) == 2, "weights are not in two parts");
    return weight.flatten(1, 2);
  }
};

#endif

}  // namespace selvage

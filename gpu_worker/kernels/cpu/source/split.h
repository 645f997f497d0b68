// A linear layer in float32 by products of bfloat16, for processors that multiply those many times faster.
#pragma once
#include "linear.h"

namespace selvage {

#ifdef CPU_CAPABILITY_AVX512

// y = x W^T + b, where numbers are sums of parts: x = x1 + x2 + .., x1 the nearest bfloat16, x2 that of the rest, and so
// on. Two parts are off by 2^-17 of a number at most, three parts by about 2^-25, as float32 is. Of products xi Wj only
// those with i + j <= parts + 1 count, which are the large ones: three products for two parts, six for three. Sums are
// in float32. A number above 3.39e38 has no nearest bfloat16: its row becomes infinite or NaN.
//
// Weights lie as [outputs / block, parts, inputs / 2, block, 2], the large parts first; rows as [parts, inputs], the
// small parts first. So one product of the whole depth makes x3 W1 + x2 W2 + x1 W3, one of two thirds x2 W1 + x1 W2, and
// the last one x1 W1: small terms come before large ones.
struct SplitLinear : LayerShape {
  const BFloat16* weight;
  const float* bias;
  int64_t parts;

  struct Input {
    const float* numbers;
    int64_t stride;
    BFloat16* rows;
  };

  SplitLinear(const at::Tensor& weight, const at::Tensor& bias)
      : LayerShape(weight.flatten(1, 2), bias, TOGETHER<BFloat16>, 1),
        weight(weight.const_data_ptr<BFloat16>()),
        bias(bias.const_data_ptr<float>()),
        parts(weight.size(1)) {
    TORCH_CHECK(parts > 0 && inputs % (32 * parts) == 0, "a layer's sizes must be multiples of 32");
    inputs /= parts;
  }

  const void* weights_of(int64_t part) const { return weight + part * block * parts * inputs; }
  bool is_by_vectors() const { return false; }

  static constexpr bool PREPARES = true;
  Input input(const float* x, int64_t stride, int64_t rows, Scratch& scratch) const {
    return {x, stride, scratch.take<BFloat16>(rows * parts * inputs)};
  }
  void prepare(const Input& x, int64_t row) const {
    BFloat16* first = x.rows + ((row + 1) * parts - 1) * inputs;
    for (int64_t i = 0; i < inputs; i += WIDTH) {
      Vector rest = load(x.numbers + row * x.stride + i);
      for (int64_t part = 0; part < parts; part++) {
        BFloat16* place = first - part * inputs + i;
        store(place, rest);
        rest = rest - load(place);
      }
    }
  }

  template <typename Use>
  void run(const Input& x, int64_t rows, int64_t first, int64_t last, const void*, Scratch& scratch, const Use& use) const {
    float* products = scratch.take<float>(rows * block);
    const int64_t stride = parts * inputs;
    for (int64_t number = first; number < last; number++) {
      const BFloat16* right = weight + number * block * stride;
      for (int64_t count = parts; count > 0; count--) {
        const BFloat16* left = x.rows + (parts - count) * inputs;
        multiply(rows, block, count * inputs, left, stride, right, block, products, block, count < parts);
      }
      const int64_t column = number * block;
      for (int64_t row = 0; row < rows; row++) {
        use(row, column, [&](int64_t i) { return load(products + row * block + i) + load(bias + column + i); });
      }
    }
  }
};

#endif

}  // namespace selvage

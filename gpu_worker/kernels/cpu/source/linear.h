// A linear layer on rows of numbers, whose weights lie in blocks of outputs as products read them fastest.
#pragma once
#include <ATen/core/Tensor.h>

#include <cmath>
#include <optional>

#include "products.h"
#include "vectors.h"

namespace selvage {

enum class Activation { NONE, GELU, GELU_TANH, RELU, SILU };

// x P(Z <= x) for a standard normal Z, by a rational series for erf that is off by 1.5e-7 at most
// (Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26).
inline Vector gelu(Vector x) {
  const Vector a = x.abs() * Vector(0.70710678f);
  const Vector t = Vector(1.0f) / at::vec::fmadd(a, Vector(0.3275911f), Vector(1.0f));
  Vector series = at::vec::fmadd(t, Vector(1.061405429f), Vector(-1.453152027f));
  series = at::vec::fmadd(t, series, Vector(1.421413741f));
  series = at::vec::fmadd(t, series, Vector(-0.284496736f));
  series = at::vec::fmadd(t, series, Vector(0.254829592f));
  const Vector tail = series * t * power_of_two<6>(a * a * Vector(-LOG2_E)) * Vector(0.5f);
  return x * Vector::blendv(tail, Vector(1.0f) - tail, x > Vector(0.0f));
}

inline Vector activated(Vector x, Activation activation) {
  switch (activation) {
    case Activation::GELU:
      return gelu(x);
    case Activation::GELU_TANH: {
      const Vector inner = Vector(0.7978845608f) * at::vec::fmadd(x * x * x, Vector(0.044715f), x);
      return Vector(0.5f) * x * (Vector(1.0f) + inner.tanh());
    }
    case Activation::RELU:
      return at::vec::maximum(x, Vector(0.0f));
    case Activation::SILU:
      return x / (Vector(1.0f) + (Vector(0.0f) - x).exp());
    default:
      return x;
  }
}

// y = x W^T + b. `weight` holds W [outputs, inputs] as [outputs / block, inputs / t, block, t] for t numbers together.
template <typename Number>
struct Linear {
  const Number* weight;
  const float* bias;
  int64_t inputs, outputs, block;

  Linear(const at::Tensor& weight, const at::Tensor& bias)
      : weight(weight.const_data_ptr<Number>()),
        bias(bias.const_data_ptr<float>()),
        inputs(weight.size(1) * TOGETHER<Number>),
        outputs(weight.size(0) * weight.size(2)),
        block(weight.size(2)) {
    TORCH_CHECK(weight.is_contiguous() && weight.dim() == 4 && weight.size(3) == TOGETHER<Number>, "weights are not packed");
    TORCH_CHECK(block % 16 == 0 && inputs % DEPTH_STEP<Number> == 0, "a layer's sizes must be multiples of 32");
    TORCH_CHECK(bias.is_contiguous() && bias.numel() == outputs, "bias must have a number for each output");
  }

  // Calls `use(row, column, y)` with all of y, WIDTH numbers at a time, for the outputs of blocks `first` to `last` - 1.
  // `products` has room for rows x block numbers.
  template <typename Use>
  void run(const Number* x, int64_t stride, int64_t rows, int64_t first, int64_t last, float* products, const Use& use) const {
    for (int64_t part = first; part < last; part++) {
      multiply(rows, block, inputs, x, stride, weight + part * block * inputs, block, products, block, false);
      for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < block; i += WIDTH) {
          const int64_t column = part * block + i;
          use(row, column, load(products + row * block + i) + load(bias + column));
        }
      }
    }
  }
};

// Layer normalisation of a row: (x - mean) / sqrt(variance + epsilon) * weight + bias (arXiv:1607.06450).
struct LayerNorm {
  const float *weight, *bias;
  float epsilon;

  template <typename Number>
  void run(const float* x, int64_t width, Number* y) const {
    Vector sums(0.0f), squares(0.0f);
    for (int64_t i = 0; i < width; i += WIDTH) sums = sums + load(x + i);
    const Vector mean(sum(sums) / static_cast<float>(width));
    for (int64_t i = 0; i < width; i += WIDTH) {
      const Vector distance = load(x + i) - mean;
      squares = at::vec::fmadd(distance, distance, squares);
    }
    const Vector scale(1.0f / std::sqrt(sum(squares) / static_cast<float>(width) + epsilon));
    for (int64_t i = 0; i < width; i += WIDTH) {
      store(y + i, at::vec::fmadd((load(x + i) - mean) * scale, load(weight + i), load(bias + i)));
    }
  }
};

}  // namespace selvage

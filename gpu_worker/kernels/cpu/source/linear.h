// Linear layers on rows of numbers, whose weights lie in blocks of outputs as products read them fastest; rows as integers of 8
// bits.
#pragma once
#include <ATen/core/Tensor.h>

#include "block_products.h"
#include "products.h"
#include "scratch.h"
#include "vectors.h"

namespace selvage {

constexpr float STEPS = 255.0f;
constexpr float SMALLEST_STEP = 1e-30f;  // of a row whose numbers are all equal

// x [count] -> q [count] from 0 to 255, where x = step * q + least up to half a step. 0 is among the numbers that a row
// spans, as it is among those that ReLU and GELU give most.
template <typename Number>
inline void quantize(const Number* x, int64_t count, uint8_t* q, float& step, float& least) {
  Vector low(0.0f), high(0.0f);
  for (int64_t i = 0; i < count; i += WIDTH) {
    low = at::vec::minimum(low, load(x + i));
    high = at::vec::maximum(high, load(x + i));
  }
  least = -largest(Vector(0.0f) - low);
  step = std::max((largest(high) - least) / STEPS, SMALLEST_STEP);
  const Vector factor(1.0f / step), offset(-least / step);
  for (int64_t i = 0; i < count; i += WIDTH) {
    const Vector steps = at::vec::clamp(at::vec::fmadd(load(x + i), factor, offset), Vector(0.0f), Vector(STEPS));
    store_bytes(q + i, at::vec::convert_to_int_of_same_size<float>(steps.round()));
  }
}

enum class Activation { NONE, GELU, GELU_TANH, RELU, SILU };

// x P(Z <= x) for a standard normal Z, by a rational series for erf that is off by 1.5e-7 at most
// (Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26).
inline Vector gelu(Vector x) {
  const Vector a = x.abs() * Vector(0.70710678f);
  const Vector t = reciprocal(at::vec::fmadd(at_most(Vector(1e30f), a), Vector(0.3275911f), Vector(1.0f)));
  Vector series = at::vec::fmadd(t, Vector(1.061405429f), Vector(-1.453152027f));
  series = at::vec::fmadd(t, series, Vector(1.421413741f));
  series = at::vec::fmadd(t, series, Vector(-0.284496736f));
  series = at::vec::fmadd(t, series, Vector(0.254829592f));
  const Vector tail = series * t * power_of_two<5>(a * a, Vector(-LOG2_E)) * Vector(0.5f);
  return x * Vector::blendv(tail, Vector(1.0f) - tail, x > Vector(0.0f));
}

// 1 / (1 + e^-x), by e^-|x|, which does not overflow. `Number` is the format that results are rounded to.
template <typename Number>
inline Vector sigmoid(Vector x) {
  const Vector power = power_of_two<POWER_DEGREE<Number>>(x.abs(), Vector(-LOG2_E));
  return Vector::blendv(power, Vector(1.0f), x > Vector(0.0f)) * reciprocal(Vector(1.0f) + power);
}

// `Number` is the format that results are rounded to.
template <typename Number>
inline Vector activated(Vector x, Activation activation) {
  switch (activation) {
    case Activation::GELU:
      return gelu(x);
    case Activation::GELU_TANH: {
      // (1 + tanh(z)) / 2 is the sigmoid of 2 z.
      const Vector twice = Vector(1.5957691216f) * at::vec::fmadd(x * x * x, Vector(0.044715f), x);
      return x * sigmoid<Number>(twice);
    }
    case Activation::RELU:
      return at::vec::maximum(x, Vector(0.0f));
    case Activation::SILU:
      return x * sigmoid<Number>(x);
    default:
      return x;
  }
}

// A layer's sizes and where its weights W [outputs, inputs] lie: as [outputs / block, inputs / t, block, t], for t
// numbers together.
struct LayerShape {
  int64_t inputs, outputs, block;

  LayerShape(const at::Tensor& weight, const at::Tensor& numbers, int64_t together, int64_t count) {
    TORCH_CHECK(weight.dim() == 4 && weight.size(3) == together && weight.is_contiguous(), "weights are not packed");
    inputs = weight.size(1) * together, outputs = weight.size(0) * weight.size(2), block = weight.size(2);
    TORCH_CHECK(inputs % 32 == 0 && (block == 64 || block == 32), "inputs must be a multiple of 32, outputs in blocks of 64 or 32");
    TORCH_CHECK(numbers.is_contiguous() && numbers.numel() == count * outputs, "bias must have ", count, " x outputs numbers");
  }
};

// y = x W^T + b in float32 or bfloat16, with sums in float32.
template <typename Number>
struct Linear : LayerShape {
  const Number* weight;
  const float* bias;

  struct Input {
    const Number* rows;
    int64_t stride;
  };

  Linear(const at::Tensor& weight, const at::Tensor& bias)
      : LayerShape(weight, bias, TOGETHER<Number>, 1),
        weight(weight.const_data_ptr<Number>()),
        bias(bias.const_data_ptr<float>()) {}

  const void* weights_of(int64_t part) const { return weight + part * block * inputs; }
  bool is_by_vectors() const { return by_vectors<Number>(); }

  // Rows x, `stride` numbers apart, as `run` takes them once each of them is prepared, which these need not be.
  static constexpr bool PREPARES = false;
  Input input(const Number* x, int64_t stride, int64_t, Scratch&) const { return {x, stride}; }
  void prepare(const Input&, int64_t) const {}

  // Calls `use(row, column, y)` for each row and each of the blocks `first` to `last` - 1 of outputs, the first of which is
  // `column`; y(i) are the WIDTH outputs from the block's i-th on. `after`: see `multiply_blocks`.
  template <typename Use>
  void run(const Input& x, int64_t rows, int64_t first, int64_t last, const void* after, Scratch& scratch, const Use& use) const {
    const auto use_block = [&](int64_t row, int64_t column, const float* sums) {
      use(row, column, [&](int64_t i) { return load(sums + i) + load(bias + column + i); });
    };
    multiply_blocks<float>(x.rows, x.stride, rows, weight, inputs, block, first, last, after, scratch, use_block);
  }
};

// y = x W^T + b with weights of 8 bits by output, W = scale * w, and rows of 8 bits by row, x = step * q + least for q
// from 0 to 255. So y = step * scale * sum(q w) + least * scale * sum(w) + b. Sums of q w are exact where 255 times the sum of
// two neighbours, w[2 i] + w[2 i + 1], fits into 16 bits.
// `numbers` [3, outputs]: bias, scale, and scale * sum(w).
template <typename Number>
struct QuantizedLinear : LayerShape {
  const int8_t* weight;
  const float *bias, *scale, *sums;

  struct Input {
    const Number* numbers;
    int64_t stride;
    uint8_t* rows;
    float *steps, *least;
  };

  QuantizedLinear(const at::Tensor& weight, const at::Tensor& numbers)
      : LayerShape(weight, numbers, 4, 3),
        weight(weight.const_data_ptr<int8_t>()),
        bias(numbers.const_data_ptr<float>()),
        scale(bias + outputs),
        sums(scale + outputs) {}

  const void* weights_of(int64_t part) const { return weight + part * block * inputs; }
  bool is_by_vectors() const { return by_vectors<uint8_t>(); }

  static constexpr bool PREPARES = true;
  Input input(const Number* x, int64_t stride, int64_t rows, Scratch& scratch) const {
    const int64_t factors = round_up(2 * rows, 16);  // whole lines, so that rows of bytes begin at one
    auto* steps = scratch.take<float>(factors + (rows * inputs + 3) / 4);
    return {x, stride, reinterpret_cast<uint8_t*>(steps + factors), steps, steps + rows};
  }
  void prepare(const Input& x, int64_t row) const {
    quantize(x.numbers + row * x.stride, inputs, x.rows + row * inputs, x.steps[row], x.least[row]);
  }

  template <typename Use>
  void run(const Input& x, int64_t rows, int64_t first, int64_t last, const void* after, Scratch& scratch, const Use& use) const {
    const auto use_block = [&](int64_t row, int64_t begin, const int32_t* products) {
      const Vector step(x.steps[row]), least(x.least[row]);
      use(row, begin, [&](int64_t i) {
        const int64_t column = begin + i;
        const Vector sum = at::vec::convert_to_fp_of_same_size<float>(Integers::loadu(products + i));
        const Vector offset = at::vec::fmadd(least, load(sums + column), load(bias + column));
        return at::vec::fmadd(sum * step, load(scale + column), offset);
      });
    };
    multiply_blocks<int32_t, uint8_t>(x.rows, inputs, rows, weight, inputs, block, first, last, after, scratch, use_block);
  }
};

}  // namespace selvage

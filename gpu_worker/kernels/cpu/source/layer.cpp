// The parts of a post-normalised encoder layer (arXiv:1706.03762) around its attention: the products before it, and
// output, residual, normalisation and feed-forward behind it, block by block of rows while these are in the cache.
//
// A row's sums run in one order, whatever the number of rows: its bits are the same alone and among others.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "linear.h"
#include "scratch.h"
#include "split.h"
#include "tasks.h"

namespace selvage {
namespace {

constexpr int64_t MOST_ROWS = 64;  // rows of a block: their inner numbers, some 400 KiB, stay in a core's cache
constexpr int64_t LEAST_ROWS = 8;  // fewer rows would read the weights for too little work

struct Workspace {
  Scratch input, products, hidden, inner, sums;
};

// Rows of a block, so that all threads have some where a step is small.
int64_t block_rows(int64_t rows) {
  const int64_t share = round_up((rows + at::get_num_threads() - 1) / at::get_num_threads(), ROW_STEP);
  return std::clamp(share, LEAST_ROWS, MOST_ROWS);
}

template <typename Number, typename Layer>
at::Tensor linear(const at::Tensor& x, const Layer& layer, Activation activation) {
  TORCH_CHECK(x.dim() == 2 && x.size(1) == layer.inputs && x.is_contiguous(), "x must be [rows, inputs]");
  const int64_t rows = x.size(0), blocks = layer.outputs / layer.block;
  at::Tensor y = at::empty({rows, layer.outputs}, x.options());
  const Number* from = x.const_data_ptr<Number>();
  Number* to = y.mutable_data_ptr<Number>();
  // Few rows are divided by outputs: then each thread reads a part of the weights.
  const int64_t row_blocks = (rows + MOST_ROWS - 1) / MOST_ROWS;
  const int64_t parts = std::clamp<int64_t>(4 * at::get_num_threads() / std::max<int64_t>(row_blocks, 1), 1, blocks);
  const std::vector<int64_t> costs(row_blocks * parts, 1);
  share_tasks(costs, [&](const auto& next) {
    thread_local Workspace workspace;
    for (auto [task, end] = next(); task < end; std::tie(task, end) = next()) {
      for (; task < end; task++) {
        const int64_t first = task / parts * MOST_ROWS, count = std::min(MOST_ROWS, rows - first), part = task % parts;
        const auto input = layer.prepare(from + first * layer.inputs, layer.inputs, count, workspace.input);
        layer.run(input, count, blocks * part / parts, blocks * (part + 1) / parts, workspace.products,
                  [&](int64_t row, int64_t column, Vector value) {
                    store(to + (first + row) * layer.outputs + column, activated(value, activation));
                  });
      }
    }
    release_products<BFloat16>();
  });
  return y;
}

// What follows attention: h = norm(x + output(attended)), y = norm(h + down(act(up(h)))).
template <typename Number, typename Layer>
struct FeedForward {
  Layer output, up, down;
  LayerNorm first_norm, second_norm;
  Activation activation;

  at::Tensor run(const at::Tensor& x, const at::Tensor& attended) const {
    const int64_t rows = x.size(0), size = block_rows(rows);
    at::Tensor y = at::empty_like(x);
    const Number *residual = x.const_data_ptr<Number>(), *from = attended.const_data_ptr<Number>();
    Number* to = y.mutable_data_ptr<Number>();
    const std::vector<int64_t> costs((rows + size - 1) / size, 1);
    share_tasks(costs, [&](const auto& next) {
      thread_local Workspace workspace;
      for (auto [task, end] = next(); task < end; std::tie(task, end) = next()) {
        for (; task < end; task++) {
          const int64_t first = task * size;
          run_block(residual + first * output.outputs, from + first * output.inputs, std::min(size, rows - first),
                    to + first * output.outputs, workspace);
        }
      }
      release_products<BFloat16>();
    });
    return y;
  }

 private:
  void run_block(const Number* residual, const Number* attended, int64_t rows, Number* to, Workspace& workspace) const {
    Number* hidden = workspace.hidden.take<Number>(MOST_ROWS * up.inputs);
    Number* inner = workspace.inner.take<Number>(MOST_ROWS * up.outputs);
    add_and_normalise(output, attended, residual, rows, first_norm, hidden, workspace);
    const auto input = up.prepare(hidden, up.inputs, rows, workspace.input);
    up.run(input, rows, 0, up.outputs / up.block, workspace.products, [&](int64_t row, int64_t column, Vector value) {
      store(inner + row * up.outputs + column, activated(value, activation));
    });
    add_and_normalise(down, inner, hidden, rows, second_norm, to, workspace);
  }

  void add_and_normalise(const Layer& layer, const Number* x, const Number* residual, int64_t rows, const LayerNorm& norm,
                         Number* to, Workspace& workspace) const {
    const int64_t width = layer.outputs;
    float* sums = workspace.sums.take<float>(MOST_ROWS * width);
    const auto input = layer.prepare(x, layer.inputs, rows, workspace.input);
    layer.run(input, rows, 0, width / layer.block, workspace.products, [&](int64_t row, int64_t column, Vector value) {
      store(sums + row * width + column, value + load(residual + row * width + column));
    });
    for (int64_t row = 0; row < rows; row++) norm.run(sums + row * width, width, to + row * width);
  }
};

Activation activation_of(int64_t number) {
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

at::Tensor call_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t activation) {
  const Activation kind = activation_of(activation);
  return by_format(x, weight, [&]<typename Number, typename Layer>() { return linear<Number>(x, Layer(weight, bias), kind); });
}

at::Tensor call_feed_forward(const at::Tensor& x, const at::Tensor& attended, at::TensorList weights, at::TensorList biases,
                             at::TensorList norms, double epsilon, int64_t activation) {
  const Activation kind = activation_of(activation);
  TORCH_CHECK(weights.size() == 3 && biases.size() == 3 && norms.size() == 4, "a layer has 3 weights and 2 norms");
  TORCH_CHECK(x.is_contiguous() && attended.is_contiguous() && x.dim() == 2 && attended.dim() == 2, "rows must lie together");
  TORCH_CHECK(x.scalar_type() == attended.scalar_type(), "number formats differ");
  for (const at::Tensor& numbers : norms) TORCH_CHECK(numbers.numel() == x.size(1) && numbers.is_contiguous(), "shapes differ");
  const auto norm = [&](int i) {
    return LayerNorm{norms[i].const_data_ptr<float>(), norms[i + 1].const_data_ptr<float>(), static_cast<float>(epsilon)};
  };
  return by_format(x, weights[0], [&]<typename Number, typename Layer>() {
    const FeedForward<Number, Layer> layer{Layer(weights[0], biases[0]), Layer(weights[1], biases[1]), Layer(weights[2], biases[2]),
                                           norm(0), norm(2), kind};
    TORCH_CHECK(x.size(0) == attended.size(0) && attended.size(1) == layer.output.inputs && x.size(1) == layer.output.outputs &&
                    x.size(1) == layer.up.inputs && layer.up.outputs == layer.down.inputs && layer.down.outputs == x.size(1),
                "shapes differ");
    return layer.run(x, attended);
  });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(selvage, library) {
  library.def("linear(Tensor x, Tensor weight, Tensor bias, int activation) -> Tensor");
  library.def(
      "feed_forward(Tensor x, Tensor attended, Tensor[] weights, Tensor[] biases, Tensor[] norms, float epsilon, "
      "int activation) -> Tensor");
}

TORCH_LIBRARY_IMPL(selvage, CPU, library) {
  library.impl("linear", call_linear);
  library.impl("feed_forward", call_feed_forward);
}

}  // namespace selvage

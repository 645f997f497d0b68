// A linear layer on rows of numbers, and an activation behind it.
//
// A row's sums run in one order, whatever the number of rows: its bits are the same alone and among others.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "layer.h"
#include "tasks.h"

namespace selvage {
namespace {

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
    const ProductsOfRegion<BFloat16> products;
    thread_local Workspace workspace;
    for (auto [task, end] = next(); task < end; std::tie(task, end) = next()) {
      for (; task < end; task++) {
        const int64_t first = task / parts * MOST_ROWS, count = std::min(MOST_ROWS, rows - first), part = task % parts;
        const auto input = layer.input(from + first * layer.inputs, layer.inputs, count, workspace.input);
        if (layer.PREPARES) {
          for (int64_t row = 0; row < count; row++) layer.prepare(input, row);
        }
        layer.run(input, count, blocks * part / parts, blocks * (part + 1) / parts, nullptr, workspace.products,
                  [&](int64_t row, int64_t column, const auto& outputs) {
                    Number* numbers = to + (first + row) * layer.outputs + column;
                    for (int64_t i = 0; i < layer.block; i += WIDTH) store(numbers + i, activated<Number>(outputs(i), activation));
                  });
      }
    }
  });
  return y;
}

at::Tensor call_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t activation) {
  const Activation kind = activation_of(activation);
  return by_format(x, weight, [&]<typename Number, typename Layer>() { return linear<Number>(x, Layer(weight, bias), kind); });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(selvage, library) {
  library.def("linear(Tensor x, Tensor weight, Tensor bias, int activation) -> Tensor");
}

TORCH_LIBRARY_IMPL(selvage, CPU, library) {
  library.impl("linear", call_linear);
}

}  // namespace selvage

// The parts of an encoder layer around its attention: normalisation, products, normalised heads and rotary positions
// before it; output, residuals, normalisations and a feed-forward behind it, block by block of rows. Layers are
// post-normalised (arXiv:1706.03762) or pre-normalised (arXiv:2002.04745).
//
// A row's sums run in one order, whatever the number of rows: its bits are the same alone and among others.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <numeric>

#include "head.h"
#include "layer.h"
#include "operators.h"
#include "work_stealing.h"

namespace selvage {
namespace {

// Bytes of a block's numbers: more than a core's own cache holds, since they are read in order, while the weights come
// from further away and each block reads all of them.
constexpr int64_t BLOCK_BYTES = 1 << 22;
constexpr int64_t MOST_BLOCK_ROWS = 256;
constexpr int64_t FEW_ROWS = 32;  // all threads share so few: reading the weights takes the time, each thread reads a part

// Most rows of a block: the more there are, the fewer times large weights are read.
int64_t most_rows(int64_t row_bytes) {
  return std::clamp(BLOCK_BYTES / row_bytes / ROW_STEP * ROW_STEP, MOST_ROWS, MOST_BLOCK_ROWS);
}

// Whether blocks of rows may read the weights of these layers once more each.
template <typename... Layers>
bool reads_again(const Layers&... layers) {
  const auto bytes = [](const auto& layer) {
    return static_cast<const char*>(layer.weights_of(layer.outputs / layer.block)) - static_cast<const char*>(layer.weights_of(0));
  };
  return (layers.is_by_vectors() && ...) && (bytes(layers) + ...) <= CACHED_BYTES;
}

// Weights that a thread reads behind blocks `first` to `last` - 1 of a layer, or none: see `StealableBlocks::run`. `next`: the
// layer whose weights are read next.
template <typename Layer>
const void* weights_behind(const Layer& layer, int64_t first, int64_t last, int64_t step, const Layer* next = nullptr) {
  const int64_t block = step > 0 ? last : first + step;
  if (block >= 0 && block < layer.outputs / layer.block) return layer.weights_of(block);
  if (next == nullptr) return nullptr;
  return next->weights_of(step > 0 ? 0 : next->outputs / next->block - 1);
}

// How many threads share a block of rows where rows are too few for all: then each thread reads a part of the weights. So many
// that all have equal work.
int64_t threads_of_block(int64_t rows, int64_t threads) {
  int64_t sharing = 1;
  while (sharing < threads && (threads % sharing != 0 || rows * sharing < threads * MOST_ROWS)) sharing++;
  return sharing;
}

// Calls `work(row)` for each of `rows` rows; threads that are done with their own take some of them.
template <typename Work>
void share_rows(int64_t rows, StealableBlocks& stealable, Workspace& memory, const Work& work) {
  stealable.run((rows + ROW_STEP - 1) / ROW_STEP, memory, [&](int64_t part, int64_t, Workspace&) {
    for (int64_t row = part * ROW_STEP; row < std::min(rows, (part + 1) * ROW_STEP); row++) work(row);
  });
}

// Heads of `depth` numbers that a row begins with: `queries` and then `keys`; values follow.
struct Heads {
  int64_t depth, queries, keys;
};

// What precedes attention: y = W norm(x) + b, with normalised and rotated heads of queries and keys.
template <typename Number, typename Layer>
struct AttentionInputs {
  Layer layer;
  Norm norm, query_norm, key_norm;
  Heads heads;
  Rotation rotation;

  at::Tensor run(const at::Tensor& x) const {
    const int64_t rows = x.size(0);
    at::Tensor y = at::empty({rows, layer.outputs}, x.options());
    const Number* from = x.const_data_ptr<Number>();
    Number* to = y.mutable_data_ptr<Number>();
    const int64_t row_bytes = (layer.inputs + layer.outputs) * static_cast<int64_t>(sizeof(Number));
    const int64_t threads = at::get_num_threads();
    const RowBlocks row_blocks(rows, threads / threads_of_block(rows, threads), most_rows(row_bytes), reads_again(layer));
    share_stealable(row_blocks.count, [&](int64_t task, StealableBlocks& stealable, Workspace& workspace) {
      const int64_t row = row_blocks.first(task);
      run_rows(from + row * layer.inputs, row, row_blocks.size(task), to + row * layer.outputs, stealable, workspace);
    });
    return y;
  }

 private:
  // Computes the outputs of `rows` tokens from `token` on.
  void run_rows(const Number* x, int64_t token, int64_t rows, Number* to, StealableBlocks& stealable, Workspace& memory) const {
    Number* normed = norm ? memory.hidden.take<Number>(rows * layer.inputs) : nullptr;
    const auto input = layer.input(norm ? normed : x, layer.inputs, rows, memory.input);
    if (norm || layer.PREPARES) {
      share_rows(rows, stealable, memory, [&](int64_t row) {
        if (norm) norm.run(x + row * layer.inputs, layer.inputs, normed + row * layer.inputs);
        layer.prepare(input, row);
      });
    }
    const int64_t blocks = layer.outputs / layer.block;
    const int64_t unit = std::lcm(heads.depth, layer.block) / layer.block;  // blocks of whole heads
    stealable.run((blocks + unit - 1) / unit, memory, [&](int64_t part, int64_t step, Workspace& workspace) {
      const int64_t first = part * unit, last = std::min(first + unit, blocks);
      layer.run(input, rows, first, last, weights_behind(layer, first, last, step * unit), workspace.products,
                [&](int64_t row, int64_t column, const auto& outputs) {
                  Number* numbers = to + row * layer.outputs + column;
                  for (int64_t i = 0; i < layer.block; i += WIDTH) store(numbers + i, outputs(i));
                });
      const int64_t begin = first * layer.block / heads.depth;
      const int64_t end = std::min(last * layer.block / heads.depth, heads.queries + heads.keys);
      for (int64_t row = 0; row < rows; row++) {
        for (int64_t head = begin; head < end; head++) {
          Number* numbers = to + row * layer.outputs + head * heads.depth;
          finish_head(numbers, heads.depth, head < heads.queries ? query_norm : key_norm, rotation, token + row);
        }
      }
    });
  }
};

// What follows attention, with the inner numbers act(up(n)), or act(gate(n)) * up(n) where the layer is `gated`
// (arXiv:2002.05202): then gate's outputs are the first half of each block of `up`. A post-normalised layer computes
// n = h = norm(x + output(attended)) and y = norm(h + down(inner)). All others compute h = x + norm(output(attended)),
// n = norm(h), y = h + norm(down(inner)). A normalisation that a layer lacks leaves its rows as they are.
template <typename Number, typename Layer>
struct FeedForward {
  Layer output, up, down;
  Norm output_norm, norm, down_norm;
  Activation activation;
  bool gated, post_normalised;

  at::Tensor run(const at::Tensor& x, const at::Tensor& attended) const {
    const int64_t rows = x.size(0);
    at::Tensor y = at::empty_like(x);
    const Number *residual = x.const_data_ptr<Number>(), *from = attended.const_data_ptr<Number>();
    Number* to = y.mutable_data_ptr<Number>();
    const int64_t width = output.outputs;
    const int64_t row_bytes = width * static_cast<int64_t>(sizeof(float)) + (width + down.inputs) * static_cast<int64_t>(sizeof(Number));
    const int64_t threads = rows <= FEW_ROWS ? 1 : at::get_num_threads();
    const RowBlocks row_blocks(rows, threads, most_rows(row_bytes), reads_again(output, up, down));
    share_stealable(row_blocks.count, [&](int64_t task, StealableBlocks& stealable, Workspace& memory) {
      const int64_t first = row_blocks.first(task) * width, first_input = row_blocks.first(task) * output.inputs;
      run_rows(residual + first, from + first_input, row_blocks.size(task), to + first, stealable, memory);
    });
    return y;
  }

 private:
  // Computes rows, with what they need in `memory`.
  void run_rows(const Number* x, const Number* attended, int64_t rows, Number* to, StealableBlocks& stealable, Workspace& memory) const {
    const int64_t width = output.outputs;
    float* h = memory.residuals.take<float>(rows * width);
    Number* normed = memory.hidden.take<Number>(rows * width);
    Number* inner = memory.inner.take<Number>(rows * down.inputs);
    const auto input = output.input(attended, output.inputs, rows, memory.input);
    if (output.PREPARES) share_rows(rows, stealable, memory, [&](int64_t row) { output.prepare(input, row); });
    float* sums = add_product(output, &up, input, rows, output_norm, x, h, stealable, memory);
    const auto up_input = up.input(normed, up.inputs, rows, memory.input);
    share_rows(rows, stealable, memory, [&](int64_t row) {
      if (output_norm) finish_row(output_norm, sums + row * width, x + row * width, h + row * width);
      norm.run(h + row * width, width, normed + row * width);
      up.prepare(up_input, row);
    });
    multiply_inner(up_input, rows, inner, stealable, memory);
    const auto down_input = down.input(inner, down.inputs, rows, memory.input);
    if (down.PREPARES) share_rows(rows, stealable, memory, [&](int64_t row) { down.prepare(down_input, row); });
    sums = add_product(down, nullptr, down_input, rows, down_norm, h, to, stealable, memory);
    if (!down_norm) return;
    share_rows(rows, stealable, memory,
               [&](int64_t row) { finish_row(down_norm, sums + row * width, h + row * width, to + row * width); });
  }

  // Computes the inner numbers of `rows` rows.
  void multiply_inner(const typename Layer::Input& input, int64_t rows, Number* inner, StealableBlocks& stealable, Workspace& memory) const {
    const int64_t inputs = down.inputs, half = up.block / 2;
    stealable.run(up.outputs / up.block, memory, [&](int64_t block, int64_t step, Workspace& workspace) {
      const void* after = weights_behind(up, block, block + 1, step, &down);
      up.run(input, rows, block, block + 1, after, workspace.products, [&](int64_t row, int64_t column, const auto& outputs) {
        if (gated) {
          Number* numbers = inner + row * inputs + column / 2;
          for (int64_t i = 0; i < half; i += WIDTH) {
            store(numbers + i, activated<Number>(outputs(i), activation) * outputs(half + i));
          }
        } else {
          Number* numbers = inner + row * inputs + column;
          for (int64_t i = 0; i < up.block; i += WIDTH) store(numbers + i, activated<Number>(outputs(i), activation));
        }
      });
    });
  }

  // Adds the product W x + b to the residual, into `to`. Where a normalisation follows, rows wait for `finish_row` in what is
  // returned: with the residual in post-normalised layers, and without in others. `next`: the layer whose weights are read next.
  template <typename Residual, typename To>
  float* add_product(const Layer& layer, const Layer* next, const typename Layer::Input& input, int64_t rows, const Norm& norm,
                     const Residual* residual, To* to, StealableBlocks& stealable, Workspace& memory) const {
    const int64_t width = layer.outputs;
    const bool alone = norm && !post_normalised;
    float* sums = norm ? memory.sums.take<float>(rows * width) : nullptr;
    stealable.run(width / layer.block, memory, [&](int64_t block, int64_t step, Workspace& workspace) {
      const void* after = weights_behind(layer, block, block + 1, step, next);
      layer.run(input, rows, block, block + 1, after, workspace.products, [&](int64_t row, int64_t column, const auto& outputs) {
        const int64_t begin = row * width + column;
        for (int64_t place = begin; place < begin + layer.block; place += WIDTH) {
          const Vector value = alone ? outputs(place - begin) : outputs(place - begin) + load(residual + place);
          norm ? store(sums + place, value) : store(to + place, value);
        }
      });
    });
    return sums;
  }

  // Normalises the row of a product that `add_product` left, and adds the residual where it is not in there.
  template <typename Residual, typename To>
  void finish_row(const Norm& norm, float* row, const Residual* residual, To* to) const {
    const int64_t width = output.outputs;
    if (post_normalised) return norm.run(row, width, to);
    norm.run(row, width, row);
    for (int64_t i = 0; i < width; i += WIDTH) store(to + i, load(residual + i) + load(row + i));
  }
};

// A normalisation of rows of `width` numbers: `numbers` [2, width] float32, weight and bias, or none if that is empty.
Norm norm_of(const at::Tensor& numbers, int64_t width, double epsilon, bool centred) {
  if (numbers.numel() == 0) return {};
  TORCH_CHECK(numbers.numel() == 2 * width && numbers.is_contiguous() && numbers.scalar_type() == at::kFloat,
              "a norm must have [2, ", width, "] float32");
  const float* weight = numbers.const_data_ptr<float>();
  return {weight, weight + width, static_cast<float>(epsilon), centred};
}

Rotation rotation_of(const std::optional<at::Tensor>& cos, const std::optional<at::Tensor>& sin, int64_t rows, int64_t depth) {
  TORCH_CHECK(cos.has_value() == sin.has_value(), "cos and sin come together");
  if (!cos) return {};
  for (const at::Tensor& angles : {*cos, *sin}) {
    TORCH_CHECK(angles.dim() == 2 && angles.size(0) == rows && angles.size(1) == cos->size(1) && angles.is_contiguous() &&
                    angles.scalar_type() == at::kFloat,
                "cos and sin must be [rows, width] float32");
  }
  TORCH_CHECK(cos->size(1) % 2 == 0 && cos->size(1) <= depth, "a head of ", depth, " numbers cannot be rotated by ", cos->size(1));
  return {cos->const_data_ptr<float>(), sin->const_data_ptr<float>(), cos->size(1)};
}

}  // namespace

at::Tensor attention_inputs(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, at::TensorList norms,
                            double epsilon, bool centred, at::IntArrayRef heads, const std::optional<at::Tensor>& cos,
                            const std::optional<at::Tensor>& sin) {
  TORCH_CHECK(norms.size() == 3 && heads.size() == 3, "there are 3 norms, and 3 numbers of heads");
  const Heads shape{heads[0], heads[1], heads[2]};
  TORCH_CHECK(shape.depth > 0 && shape.depth % 16 == 0 && shape.queries > 0 && shape.keys > 0, "a head must have a multiple of 16 numbers");
  return by_format(x, weight, [&]<typename Number, typename Layer>() {
    const AttentionInputs<Number, Layer> inputs{Layer(weight, bias),
                                                norm_of(norms[0], x.size(-1), epsilon, centred),
                                                norm_of(norms[1], shape.depth, epsilon, false),
                                                norm_of(norms[2], shape.depth, epsilon, false),
                                                shape,
                                                rotation_of(cos, sin, x.size(0), shape.depth)};
    TORCH_CHECK(x.dim() == 2 && x.is_contiguous() && x.size(1) == inputs.layer.inputs, "x must be [rows, inputs]");
    TORCH_CHECK((shape.queries + shape.keys) * shape.depth <= inputs.layer.outputs, "the outputs are too few for these heads");
    return inputs.run(x);
  });
}

at::Tensor feed_forward(const at::Tensor& x, const at::Tensor& attended, at::TensorList weights, at::TensorList biases,
                        at::TensorList norms, double epsilon, bool centred, int64_t activation, bool gated, bool post_normalised) {
  const Activation kind = activation_of(activation);
  TORCH_CHECK(weights.size() == 3 && biases.size() == 3 && norms.size() == 3, "a layer has 3 weights and 3 norms");
  TORCH_CHECK(x.is_contiguous() && attended.is_contiguous() && x.dim() == 2 && attended.dim() == 2, "rows must lie together");
  TORCH_CHECK(x.scalar_type() == attended.scalar_type(), "number formats differ");
  return by_format(x, weights[0], [&]<typename Number, typename Layer>() {
    const int64_t width = x.size(1);
    const auto norm = [&](int i) { return norm_of(norms[i], width, epsilon, centred); };
    const Layer output(weights[0], biases[0]), up(weights[1], biases[1]), down(weights[2], biases[2]);
    TORCH_CHECK(x.size(0) == attended.size(0) && attended.size(1) == output.inputs && width == output.outputs &&
                    width == up.inputs && up.outputs == down.inputs * (gated ? 2 : 1) && down.outputs == width,
                "shapes differ");
    return FeedForward<Number, Layer>{output, up, down, norm(0), norm(1), norm(2), kind, gated, post_normalised}.run(x, attended);
  });
}

TORCH_LIBRARY_FRAGMENT(selvage, library) {
  library.def(
      "attention_inputs(Tensor x, Tensor weight, Tensor bias, Tensor[] norms, float epsilon, bool centred, int[] heads, "
      "Tensor? cos, Tensor? sin) -> Tensor");
  library.def(
      "feed_forward(Tensor x, Tensor attended, Tensor[] weights, Tensor[] biases, Tensor[] norms, float epsilon, "
      "bool centred, int activation, bool gated, bool post_normalised) -> Tensor");
}

TORCH_LIBRARY_IMPL(selvage, CPU, library) {
  library.impl("attention_inputs", attention_inputs);
  library.impl("feed_forward", feed_forward);
}

}  // namespace selvage

// Layers of one kind, one after the other, in one call: threads meet again before they sleep, and no interpreter runs
// between layers.
#include <torch/library.h>

#include "operators.h"

namespace selvage {
namespace {

constexpr int64_t NUMBERS = 14;  // tensors of a layer, see `layers`

// Hidden states x [rows, width] -> the same. `numbers` of each layer: weight, bias and three norms of what precedes
// attention; three weights, three biases and three norms of what follows it.
at::Tensor layers(const at::Tensor& x, at::TensorList numbers, at::IntArrayRef heads, double epsilon, bool centred,
                  int64_t activation, bool gated, bool post_normalised, const std::optional<at::Tensor>& cos,
                  const std::optional<at::Tensor>& sin, const at::Tensor& sequences, double scale, bool causal, int64_t window,
                  int64_t chunk, double softcap) {
  TORCH_CHECK(!numbers.empty() && numbers.size() % NUMBERS == 0, "a layer has ", NUMBERS, " tensors");
  TORCH_CHECK(heads.size() == 3, "there are 3 numbers of heads");
  const int64_t depth = heads[0], queries = heads[1], keys = heads[2];
  at::Tensor states = x;
  for (; !numbers.empty(); numbers = numbers.slice(NUMBERS)) {
    const at::Tensor inputs =
        attention_inputs(states, numbers[0], numbers[1], numbers.slice(2, 3), epsilon, centred, heads, cos, sin);
    const at::Tensor of_heads = inputs.view({inputs.size(0), -1, depth}).transpose(0, 1);
    const at::Tensor attended = attention(of_heads.narrow(0, 0, queries), of_heads.narrow(0, queries, keys),
                                          of_heads.narrow(0, queries + keys, keys), sequences, scale, causal, window, chunk,
                                          softcap, std::nullopt, 0, std::nullopt);
    states = feed_forward(states, attended.flatten(1), numbers.slice(5, 3), numbers.slice(8, 3), numbers.slice(11, 3), epsilon,
                          centred, activation, gated, post_normalised);
  }
  return states;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(selvage, library) {
  library.def(
      "layers(Tensor x, Tensor[] numbers, int[] heads, float epsilon, bool centred, int activation, bool gated, "
      "bool post_normalised, Tensor? cos, Tensor? sin, Tensor sequences, float scale, bool causal, int window, int chunk, "
      "float softcap) -> Tensor");
}

TORCH_LIBRARY_IMPL(selvage, CPU, library) { library.impl("layers", layers); }

}  // namespace selvage

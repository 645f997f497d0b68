// Layers of one kind, one after the other, in one call: threads meet again before they sleep, and no interpreter runs
// between layers.
#include <torch/library.h>

#include "operators.h"

namespace selvage {
namespace {

constexpr int64_t NUMBERS = 14;  // tensors of a layer, see `layers`

// Adds keys and values [heads, tokens, numbers] to the caches of the last sequences, at the places of their queries.
void extend_caches(const at::Tensor& key, const at::Tensor& value, const at::Tensor& sequences, at::TensorList caches) {
  const auto count = static_cast<int64_t>(caches.size() / 2);
  const auto* numbers = sequences.const_data_ptr<int64_t>() + 5 * (sequences.size(0) - count);
  for (int64_t i = 0; i < count; i++, numbers += 5) {
    const auto add = [&](const at::Tensor& states, const at::Tensor& to) {
      to.narrow(0, numbers[4], numbers[1]).copy_(states.narrow(1, numbers[0], numbers[1]).transpose(0, 1));
    };
    add(key, caches[2 * i]), add(value, caches[2 * i + 1]);
  }
}

// Gives caches of sequences that begin like others the keys and values of what they have in common, which precedes their
// queries. `forks`: their numbers among the last sequences; `leaders`: keys and values of the others, in the same order.
void take_beginnings(const at::Tensor& sequences, at::IntArrayRef forks, at::TensorList leaders, at::TensorList caches) {
  const auto first = sequences.size(0) - static_cast<int64_t>(caches.size() / 2);
  for (size_t i = 0; i < forks.size(); i++) {
    const int64_t shared = sequences.const_data_ptr<int64_t>()[5 * (first + forks[i]) + 4];
    for (size_t j = 0; j < 2; j++) caches[2 * forks[i] + j].narrow(0, 0, shared).copy_(leaders[2 * i + j].narrow(0, 0, shared));
  }
}

// Hidden states x [rows, width] -> the same. `numbers` of each layer: weight, bias and three norms of what precedes
// attention; three weights, three biases and three norms of what follows it. `caches`: of each layer, keys and values
// [tokens, heads, numbers] of the last sequences, to which these add their own. `forks`, `leaders`: see `take_beginnings`; the
// leaders' are of each layer.
at::Tensor layers(const at::Tensor& x, at::TensorList numbers, at::IntArrayRef heads, double epsilon, bool centred,
                  int64_t activation, bool gated, bool post_normalised, const std::optional<at::Tensor>& cos,
                  const std::optional<at::Tensor>& sin, const at::Tensor& sequences, double scale, bool causal, int64_t window,
                  double softcap, const std::optional<at::Tensor>& places, at::TensorList caches,
                  at::IntArrayRef forks, at::TensorList leaders) {
  TORCH_CHECK(!numbers.empty() && numbers.size() % NUMBERS == 0, "a layer has ", NUMBERS, " tensors");
  TORCH_CHECK(heads.size() == 3, "there are 3 numbers of heads");
  TORCH_CHECK(sequences.dim() == 2 && sequences.size(1) == 5 && sequences.scalar_type() == at::kLong && sequences.is_contiguous(),
              "sequences must be [n, 5] int64");
  const size_t count = numbers.size() / NUMBERS, of_layer = caches.size() / count;
  TORCH_CHECK(caches.size() == count * of_layer && of_layer % 2 == 0 && static_cast<int64_t>(of_layer / 2) <= sequences.size(0),
              "each layer has caches of the same sequences");
  TORCH_CHECK(leaders.size() == 2 * forks.size() * count, "each layer has keys and values of the same leaders");
  for (const int64_t fork : forks) TORCH_CHECK(0 <= fork && fork < static_cast<int64_t>(of_layer / 2), "there is no cache ", fork);
  const int64_t depth = heads[0], queries = heads[1], keys = heads[2];
  at::Tensor states = x;
  for (; !numbers.empty(); numbers = numbers.slice(NUMBERS), caches = caches.slice(of_layer), leaders = leaders.slice(2 * forks.size())) {
    const at::Tensor inputs =
        attention_inputs(states, numbers[0], numbers[1], numbers.slice(2, 3), epsilon, centred, heads, cos, sin);
    const at::Tensor of_heads = inputs.view({inputs.size(0), -1, depth}).transpose(0, 1);
    const at::Tensor key = of_heads.narrow(0, queries, keys), value = of_heads.narrow(0, queries + keys, keys);
    const at::TensorList caches_here = caches.slice(0, of_layer);
    extend_caches(key, value, sequences, caches_here);
    take_beginnings(sequences, forks, leaders.slice(0, 2 * forks.size()), caches_here);
    const at::Tensor attended = attention(of_heads.narrow(0, 0, queries), key, value, sequences, scale, causal, window, softcap,
                                          std::nullopt, places, caches_here);
    states = feed_forward(states, attended.flatten(1), numbers.slice(5, 3), numbers.slice(8, 3), numbers.slice(11, 3), epsilon,
                          centred, activation, gated, post_normalised);
  }
  return states;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(selvage, library) {
  library.def(
      "layers(Tensor x, Tensor[] numbers, int[] heads, float epsilon, bool centred, int activation, bool gated, "
      "bool post_normalised, Tensor? cos, Tensor? sin, Tensor sequences, float scale, bool causal, int window, "
      "float softcap, Tensor? places, Tensor(a!)[] caches, int[] forks, Tensor[] leaders) -> Tensor");
}

TORCH_LIBRARY_IMPL(selvage, CPU, library) { library.impl("layers", layers); }

}  // namespace selvage

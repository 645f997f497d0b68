// Layers of one kind, one after the other, in one call: threads meet again before they sleep, and no interpreter runs
// between layers.
#include <torch/library.h>

#include "operators.h"

namespace selvage {
namespace {

constexpr int64_t NUMBERS = 14;  // tensors of a layer, see `layers`

// Writes keys and values [heads, tokens, numbers] of the batch to caches: `writes` [w, 4] has the cache, the first of its slots,
// the first token, and how many of them.
void write(const at::Tensor& key, const at::Tensor& value, const at::Tensor& writes, at::TensorList caches) {
  const auto* numbers = writes.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < writes.size(0); i++, numbers += 4) {
    for (int64_t side = 0; side < 2; side++) {
      const at::Tensor states = (side == 0 ? key : value).narrow(1, numbers[2], numbers[3]);
      caches[2 * numbers[0] + side].narrow(0, numbers[1], numbers[3]).copy_(states.transpose(0, 1));
    }
  }
}

// Hidden states x [rows, width] -> the same. `numbers` of each layer: weight, bias and three norms of what precedes
// attention; three weights, three biases and three norms of what follows it. `caches`: of each layer, keys and values
// [tokens, heads, numbers] of some sequences; `writes`: see `write`; `segments`: see `slots_of` in attention.cpp.
at::Tensor layers(const at::Tensor& x, at::TensorList numbers, at::IntArrayRef heads, double epsilon, bool centred,
                  int64_t activation, bool gated, bool post_normalised, const std::optional<at::Tensor>& cos,
                  const std::optional<at::Tensor>& sin, const at::Tensor& sequences, double scale, bool causal, int64_t window,
                  double softcap, const at::Tensor& segments, const at::Tensor& writes, at::TensorList caches) {
  TORCH_CHECK(!numbers.empty() && numbers.size() % NUMBERS == 0, "a layer has ", NUMBERS, " tensors");
  TORCH_CHECK(heads.size() == 3, "there are 3 numbers of heads");
  TORCH_CHECK(sequences.dim() == 2 && sequences.size(1) == 5 && sequences.scalar_type() == at::kLong && sequences.is_contiguous(),
              "sequences must be [n, 5] int64");
  const size_t count = numbers.size() / NUMBERS, of_layer = caches.size() / count;
  TORCH_CHECK(caches.size() == count * of_layer && of_layer % 2 == 0, "each layer has caches of the same sequences");
  TORCH_CHECK(writes.dim() == 2 && writes.size(1) == 4 && writes.scalar_type() == at::kLong && writes.is_contiguous(),
              "writes must be [w, 4] int64");
  for (int64_t i = 0; i < writes.size(0); i++) {
    const int64_t cache = writes.const_data_ptr<int64_t>()[4 * i];
    TORCH_CHECK(0 <= cache && cache < static_cast<int64_t>(of_layer / 2), "there is no cache ", cache);
  }
  const int64_t depth = heads[0], queries = heads[1], keys = heads[2];
  at::Tensor states = x;
  for (; !numbers.empty(); numbers = numbers.slice(NUMBERS), caches = caches.slice(of_layer)) {
    const at::Tensor inputs =
        attention_inputs(states, numbers[0], numbers[1], numbers.slice(2, 3), epsilon, centred, heads, cos, sin);
    const at::Tensor of_heads = inputs.view({inputs.size(0), -1, depth}).transpose(0, 1);
    const at::Tensor key = of_heads.narrow(0, queries, keys), value = of_heads.narrow(0, queries + keys, keys);
    const at::TensorList caches_here = caches.slice(0, of_layer);
    write(key, value, writes, caches_here);
    const at::Tensor attended = attention(of_heads.narrow(0, 0, queries), key, value, sequences, scale, causal, window, softcap,
                                          std::nullopt, segments, caches_here);
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
      "float softcap, Tensor segments, Tensor writes, Tensor(a!)[] caches) -> Tensor");
}

TORCH_LIBRARY_IMPL(selvage, CPU, library) { library.impl("layers", layers); }

}  // namespace selvage

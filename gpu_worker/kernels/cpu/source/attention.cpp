// Attention as an operator: what it takes, and how its tensors become sequences.
#include "attention.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <optional>

#include "operators.h"

namespace selvage {
namespace {

template <typename Number>
Rows<const Number> rows_of(const at::Tensor& states) {
  return {states.const_data_ptr<Number>(), states.stride(0), states.stride(1)};
}

void check_rows(const at::Tensor& states) {
  TORCH_CHECK(states.stride(2) == 1, "a head's numbers must lie together");
  TORCH_CHECK(states.element_size() == 4 || (states.stride(0) % 2 == 0 && states.stride(1) % 2 == 0), "strides must be even");
}

void check(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& sequences) {
  TORCH_CHECK(query.dim() == 3 && key.dim() == 3 && value.dim() == 3, "query, key and value must be [heads, tokens, numbers]");
  TORCH_CHECK(query.scalar_type() == key.scalar_type() && key.scalar_type() == value.scalar_type(), "number formats differ");
  TORCH_CHECK(query.size(2) == key.size(2) && key.size(0) == value.size(0) && key.size(1) == value.size(1), "shapes differ");
  TORCH_CHECK(key.size(0) > 0 && query.size(0) % key.size(0) == 0, "heads of queries must be a multiple of heads of keys");
  TORCH_CHECK(query.size(2) % 16 == 0 && value.size(2) % 16 == 0, "a head must have a multiple of 16 numbers");
  for (const at::Tensor& states : {query, key, value}) check_rows(states);
  TORCH_CHECK(sequences.dim() == 2 && sequences.size(1) == 5 && sequences.scalar_type() == at::kLong && sequences.is_contiguous(),
              "sequences must be [n, 5] int64");
}

// `cached` [tokens, heads, numbers] like `states` [heads, tokens, numbers] -> the same by heads.
at::Tensor cached_rows(const at::Tensor& cached, const at::Tensor& states) {
  TORCH_CHECK(cached.dim() == 3 && cached.size(1) == states.size(0) && cached.size(2) == states.size(2) &&
                  cached.scalar_type() == states.scalar_type(),
              "a cache must be like the keys and values");
  check_rows(cached);
  return cached.transpose(0, 1);
}

// The slots that `segments` [m, 4] name: sequence, cache (-1: keys and values of the batch), first token, tokens.
template <typename Number>
std::vector<Slots<Number>> slots_of(const at::Tensor& segments, const at::Tensor& key, const at::Tensor& value,
                                    at::TensorList caches) {
  std::vector<Slots<Number>> slots;
  const auto* numbers = segments.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < segments.size(0); i++, numbers += 4) {
    const int64_t cache = numbers[1], first = numbers[2], count = numbers[3];
    TORCH_CHECK(-1 <= cache && cache < static_cast<int64_t>(caches.size() / 2), "there is no cache ", cache);
    const at::Tensor keys = cache < 0 ? key : cached_rows(caches[2 * cache], key);
    const at::Tensor values = cache < 0 ? value : cached_rows(caches[2 * cache + 1], value);
    TORCH_CHECK(first >= 0 && count > 0 && first + count <= std::min(keys.size(1), values.size(1)), "segment ", i,
                " lies outside its tensors");
    slots.push_back({rows_of<Number>(keys), rows_of<Number>(values), first, count});
  }
  return slots;
}

template <typename Number>
at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& sequences,
                  const Terms& terms, const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& segments,
                  at::TensorList caches) {
  at::Tensor output = at::empty({query.size(1), query.size(0), value.size(2)}, query.options());
  Attention<Number> attention{rows_of<Number>(query),
                              {output.mutable_data_ptr<Number>(), output.stride(1), output.stride(0)},
                              query.size(0),
                              key.size(0),
                              query.size(2),
                              value.size(2),
                              terms,
                              {},
                              {}};
  const int64_t count = sequences.size(0);
  const auto* numbers = sequences.const_data_ptr<int64_t>();
  if (bias) {
    for (int64_t i = 0; i < count; i++) {
      TORCH_CHECK(bias->size(2) >= numbers[5 * i + 1] && bias->size(3) >= numbers[5 * i + 3], "bias must have all queries and keys");
    }
    attention.bias = {bias->const_data_ptr<float>(), bias->size(0) == 1 ? 0 : bias->stride(0), bias->stride(1), bias->stride(2)};
  }
  std::vector<Slots<Number>> own, named;
  for (int64_t i = 0; i < count; i++) own.push_back({rows_of<Number>(key), rows_of<Number>(value), numbers[5 * i + 2], numbers[5 * i + 3]});
  if (segments) named = slots_of<Number>(*segments, key, value, caches);
  for (int64_t i = 0, next = 0; i < count; i++, numbers += 5) {
    Sequence<Number> sequence{numbers[0], numbers[1], numbers[3], numbers[4], &own[i]};
    TORCH_CHECK(sequence.query >= 0 && sequence.queries >= 0 && sequence.query + sequence.queries <= query.size(1) &&
                    sequence.keys >= 0 && sequence.past >= 0,
                "sequence ", i, " lies outside its tensors");
    int64_t held = 0;
    for (; segments && next < segments->size(0) && segments->const_data_ptr<int64_t>()[4 * next] == i; next++) {
      if (held == 0) sequence.slots = &named[next];
      held += named[next].count;
    }
    TORCH_CHECK(held > 0 ? held == sequence.keys : own[i].first >= 0 && own[i].first + sequence.keys <= key.size(1), "sequence ",
                i, " has keys outside its tensors");
    TORCH_CHECK(!segments || i + 1 < count || next == segments->size(0), "segments must be in the order of the sequences");
    attention.sequences.push_back(sequence);
  }
  attention.run();
  return output;
}

}  // namespace

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& sequences,
                     double scale, bool causal, int64_t window, double softcap,
                     const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& segments, at::TensorList caches) {
  check(query, key, value, sequences);
  TORCH_CHECK(!segments || (segments->dim() == 2 && segments->size(1) == 4 && segments->scalar_type() == at::kLong &&
                            segments->is_contiguous()),
              "segments must be [m, 4] int64");
  if (bias) {
    TORCH_CHECK(bias->dim() == 4 && bias->scalar_type() == at::kFloat && (bias->stride(3) == 1 || bias->size(3) == 1),
                "bias must be [n, heads, queries, keys] float32");
    TORCH_CHECK(bias->size(0) == 1 || bias->size(0) == sequences.size(0), "bias must be of one or of all sequences");
    TORCH_CHECK(bias->size(1) == query.size(0) || bias->stride(1) == 0, "bias must have a row of heads");
  }
  TORCH_CHECK(caches.size() % 2 == 0, "a cache has keys and values");
  const Terms terms{static_cast<float>(scale), static_cast<float>(softcap), {causal, window}};
  if (query.scalar_type() == at::kFloat) return attend<float>(query, key, value, sequences, terms, bias, segments, caches);
#ifdef CPU_CAPABILITY_AVX512
  if (query.scalar_type() == at::kBFloat16) return attend<BFloat16>(query, key, value, sequences, terms, bias, segments, caches);
#endif
  TORCH_CHECK(false, "attention takes float32, and bfloat16 with AVX-512; this is ", query.scalar_type());
}

TORCH_LIBRARY_FRAGMENT(selvage, library) {
  library.def(
      "attention(Tensor query, Tensor key, Tensor value, Tensor sequences, float scale, bool causal, int window, "
      "float softcap, Tensor? bias, Tensor? segments, Tensor[] caches) -> Tensor");
}

TORCH_LIBRARY_IMPL(selvage, CPU, library) { library.impl("attention", attention); }

}  // namespace selvage

// The operators that a layer is made of, as they are registered with PyTorch.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

namespace selvage {

at::Tensor attention_inputs(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, at::TensorList norms,
                            double epsilon, bool centred, at::IntArrayRef heads, const std::optional<at::Tensor>& cos,
                            const std::optional<at::Tensor>& sin);

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& sequences,
                     double scale, bool causal, int64_t window, double softcap,
                     const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& segments, at::TensorList caches);

at::Tensor feed_forward(const at::Tensor& x, const at::Tensor& attended, at::TensorList weights, at::TensorList biases,
                        at::TensorList norms, double epsilon, bool centred, int64_t activation, bool gated,
                        bool post_normalised);

}  // namespace selvage

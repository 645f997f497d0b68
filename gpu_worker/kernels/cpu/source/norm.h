// Normalisation of rows.
#pragma once
#include <cmath>
#include <cstdint>

#include "vectors.h"

namespace selvage {

// y = (x - m) / sqrt(mean((x - m)^2) + epsilon) * weight + bias for a row x [width]. m is the row's mean in layer
// normalisation (arXiv:1607.06450), and 0 in RMSNorm (arXiv:1910.07467), which is not `centred`. Without weights y = x.
struct Norm {
  const float *weight = nullptr, *bias = nullptr;
  float epsilon = 0;
  bool centred = true;

  explicit operator bool() const { return weight != nullptr; }

  // `y` may be `x`.
  template <typename From, typename To>
  void run(const From* x, int64_t width, To* y) const {
    if (weight == nullptr) {
      for (int64_t i = 0; i < width; i += WIDTH) store(y + i, load(x + i));
      return;
    }
    Vector sums(0.0f), squares(0.0f);
    if (centred) {
      for (int64_t i = 0; i < width; i += WIDTH) sums = sums + load(x + i);
    }
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

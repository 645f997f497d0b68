// Normalisation of rows, rotary positions (arXiv:2104.09864), and heads of queries and keys before attention: normalised by
// themselves (arXiv:2010.04245) and turned.
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

// Angles of all tokens: cos and sin [tokens, width] float32. None where `width` is 0.
struct Rotation {
  const float *cos = nullptr, *sin = nullptr;
  int64_t width = 0;

  // Rotates the first `width` numbers of a head of one token, in place: number i together with number i + width / 2.
  template <typename Number>
  void turn(int64_t token, Number* head) const {
    const int64_t half = width / 2;
    Number *low = head, *high = head + half;
    const float *c = cos + token * width, *s = sin + token * width;
    int64_t i = 0;
    for (; i + WIDTH <= half; i += WIDTH) {
      const Vector x = load(low + i), y = load(high + i);
      store(low + i, at::vec::fmsub(x, load(c + i), y * load(s + i)));
      store(high + i, at::vec::fmadd(y, load(c + half + i), x * load(s + half + i)));
    }
    for (; i < half; i++) {
      const float x = low[i], y = high[i];
      low[i] = x * c[i] - y * s[i];
      high[i] = y * c[half + i] + x * s[half + i];
    }
  }
};

// Normalises a head [depth] of one token by RMSNorm, where there is one, and rotates it, in place. Where both are done to
// all of a head, whose halves fill whole vectors, numbers are rounded once; else after either.
template <typename Number>
void finish_head(Number* head, int64_t depth, const Norm& norm, const Rotation& rotation, int64_t token) {
  const int64_t half = depth / 2;
  if (!norm || norm.centred || rotation.width != depth || half % WIDTH != 0) {
    if (norm) norm.run(head, depth, head);
    if (rotation.width > 0) rotation.turn(token, head);
    return;
  }
  Vector squares[2] = {Vector(0.0f), Vector(0.0f)};  // two: an operation need not wait for the one before
  for (int64_t i = 0; i < half; i += WIDTH) {
    const Vector x = load(head + i), y = load(head + half + i);
    squares[0] = at::vec::fmadd(x, x, squares[0]);
    squares[1] = at::vec::fmadd(y, y, squares[1]);
  }
  const Vector scale(1.0f / std::sqrt(sum(squares[0] + squares[1]) / static_cast<float>(depth) + norm.epsilon));
  const float *cos = rotation.cos + token * depth, *sin = rotation.sin + token * depth;
  for (int64_t i = 0; i < half; i += WIDTH) {
    const int64_t j = half + i;
    const Vector x = at::vec::fmadd(load(head + i) * scale, load(norm.weight + i), load(norm.bias + i));
    const Vector y = at::vec::fmadd(load(head + j) * scale, load(norm.weight + j), load(norm.bias + j));
    store(head + i, at::vec::fmsub(x, load(cos + i), y * load(sin + i)));
    store(head + j, at::vec::fmadd(y, load(cos + j), x * load(sin + j)));
  }
}

}  // namespace selvage

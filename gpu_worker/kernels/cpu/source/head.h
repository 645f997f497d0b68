// Heads of queries and keys before attention: normalised by themselves (arXiv:2010.04245) and turned.
#pragma once
#include <cmath>
#include <cstdint>

#include "norm.h"
#include "rotation.h"

namespace selvage {

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

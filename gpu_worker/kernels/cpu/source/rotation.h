// Rotary positions (arXiv:2104.09864).
#pragma once
#include <cstdint>

#include "vectors.h"

namespace selvage {

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

}  // namespace selvage

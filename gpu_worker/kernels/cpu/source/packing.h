// Keys and values in the layout that products read fastest. Rows are numbers of one head, `stride` numbers apart.
#pragma once
#include <ATen/cpu/vec/vec.h>
#include <cstdint>
#include <cstring>
#include <vector>

#include "products.h"
#include "vectors.h"

namespace selvage {

// [rows, columns] -> [columns, rows], of 32-bit items: floats, or pairs of bfloat16. Flattened: PyTorch's part for tiles of any
// size is twice as fast where the compiler knows that they are whole.
[[gnu::flatten]] inline void transpose(const float* from, int64_t from_stride, int64_t rows, int64_t columns, float* to,
                                       int64_t to_stride) {
  constexpr int64_t TILE = 16;
  for (int64_t row = 0; row < rows; row += TILE) {
    for (int64_t column = 0; column < columns; column += TILE) {
      const float* source = from + row * from_stride + column;
      float* target = to + column * to_stride + row;
      if (row + TILE <= rows && column + TILE <= columns) {
        at::vec::transpose_mxn<float, TILE, TILE>(source, from_stride, target, to_stride);
        continue;
      }
      // By bits: a pair of bfloat16 may look like a NaN, which a float register may change.
      for (int64_t i = 0; i < std::min(TILE, rows - row); i++) {
        for (int64_t j = 0; j < std::min(TILE, columns - column); j++) {
          std::memcpy(target + j * to_stride + i, source + i * from_stride + j, sizeof(float));
        }
      }
    }
  }
}

// The first `count` places of a block hold something, those from there to `filled` hold zeros.
struct Filling {
  int64_t count, filled;
};

// Keys [count, depth] -> the right side of queries x keys^T: [depth / t, columns, t] for t numbers together.
template <typename Number>
inline void pack_keys(const Number* keys, int64_t stride, Filling places, int64_t depth, int64_t columns, Number* packed) {
  constexpr int64_t T = TOGETHER<Number>;
  auto* items = reinterpret_cast<float*>(packed);
  transpose(reinterpret_cast<const float*>(keys), stride / T, places.count, depth / T, items, columns);
  for (int64_t row = 0; row < depth / T; row++) {
    float* to = items + row * columns;
    std::fill(to + places.count, to + places.filled, 0.0f);
  }
}

// Values [count, width] -> the right side of weights x values: [filled / t, width, t].
inline void pack_values(const float* values, int64_t stride, Filling places, int64_t width, float* packed) {
  for (int64_t row = 0; row < places.count; row++) {
    std::memcpy(packed + row * width, values + row * stride, width * sizeof(float));
  }
  std::fill(packed + places.count * width, packed + places.filled * width, 0.0f);
}

#ifdef CPU_CAPABILITY_AVX512
// Two rows of `width` numbers, a multiple of 16, as pairs of one column each.
inline void pair_rows(const BFloat16* even, const BFloat16* odd, int64_t width, BFloat16* pairs) {
  for (int64_t column = 0; column < width; column += 16) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(even + column));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd + column));
    const __m512i both = _mm512_or_si512(_mm512_cvtepu16_epi32(low), _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
    _mm512_storeu_si512(pairs + 2 * column, both);
  }
}

inline void pack_values(const BFloat16* values, int64_t stride, Filling places, int64_t width, BFloat16* packed) {
  const std::vector<BFloat16> zeros(width, BFloat16(0.0f));
  const auto at = [&](int64_t row) { return row < places.count ? values + row * stride : zeros.data(); };
  for (int64_t row = 0; row < places.filled; row += 2) pair_rows(at(row), at(row + 1), width, packed + row * width);
}
#endif

}  // namespace selvage

// The two products of attention by vectors: scores of some queries with a tile of keys, and the sums of values that
// weights make of them. `block_products.h` multiplies whole rows of weights in the same way; here rows lie apart, sums go
// on from block to block, and what is read lies in a cache.
//
// Where matrix units (AMX) multiply bfloat16, they serve instead (`matrix_units.h`). brgemm serves where vectors lack a format,
// and for heads that matrix units do not take.
#pragma once
#include "block_products.h"
#include "packing.h"
#include "softmax.h"

namespace selvage {

constexpr int MOST_VECTORS = 4;  // of a row of a tile; the pragmas below unroll as many, and rows
constexpr int64_t KEY_TILE = MOST_VECTORS * LANES;  // keys that lie together: [depth / t, KEY_TILE, t]
static_assert(KEY_TILE % DEPTH_STEP<float> == 0 && (!KNOWS_MATRIX_UNITS || KEY_TILE % DEPTH_STEP<BFloat16> == 0));

// Keys [count, depth] in tiles, see `pack_keys`. Scores of places that a tile has behind `filled` are never read.
template <typename Number>
void pack_key_tiles(const Number* keys, int64_t stride, Filling places, int64_t depth, Number* packed) {
  for (int64_t tile = 0; tile < places.filled; tile += KEY_TILE, packed += KEY_TILE * depth) {
    const auto inside = [&](int64_t place) { return std::clamp<int64_t>(place - tile, 0, KEY_TILE); };
    pack_keys(keys + tile * stride, stride, {inside(places.count), inside(places.filled)}, depth, KEY_TILE, packed);
  }
}

constexpr int MOST_TILE_ROWS = MOST_SUMS / MOST_VECTORS;

// C = A B, or C = factors C + A B where there are factors of rows: A [ROWS, items] and B [items, VECTORS] in items of 32
// bits, C [ROWS, VECTORS]. Strides in items.
template <typename Number, int ROWS, int VECTORS>
void multiply_rows_of(const int32_t* a, int64_t a_stride, const int32_t* b, int64_t b_stride, int64_t items,
                      const float* factors, float* c, int64_t c_stride) {
  Floats sums[ROWS][VECTORS];
#pragma GCC unroll 6
  for (int row = 0; row < ROWS; row++) {
    const Vector factor(factors == nullptr ? 0.0f : factors[row]);
#pragma GCC unroll 4
    for (int i = 0; i < VECTORS; i++) {
      sums[row][i] = factors == nullptr ? Floats{} : static_cast<Floats>(load(c + row * c_stride + i * LANES) * factor);
    }
  }
  for (int64_t item = 0; item < items; item++, b += b_stride) {
    Items right[VECTORS];
#pragma GCC unroll 4
    for (int i = 0; i < VECTORS; i++) right[i] = load_items(b + LANES * i);
#pragma GCC unroll 6
    for (int row = 0; row < ROWS; row++) {
      int32_t number;
      std::memcpy(&number, a + row * a_stride + item, sizeof(number));
      const Items left = everywhere(number);
#pragma GCC unroll 4
      for (int i = 0; i < VECTORS; i++) sums[row][i] = Lanes<Number>::add(sums[row][i], left, right[i]);
    }
  }
#pragma GCC unroll 6
  for (int row = 0; row < ROWS; row++) {
#pragma GCC unroll 4
    for (int i = 0; i < VECTORS; i++) store(c + row * c_stride + i * LANES, Vector(sums[row][i]));
  }
}

// The same for `rows` rows, from 1 to ROWS, and `vectors` vectors, from 1 to VECTORS.
template <typename Number, int ROWS = MOST_TILE_ROWS, int VECTORS = MOST_VECTORS>
void multiply_some(int64_t rows, int64_t vectors, const int32_t* a, int64_t a_stride, const int32_t* b, int64_t b_stride,
                   int64_t items, const float* factors, float* c, int64_t c_stride) {
  if constexpr (ROWS > 1) {
    if (rows < ROWS) {
      return multiply_some<Number, ROWS - 1, VECTORS>(rows, vectors, a, a_stride, b, b_stride, items, factors, c, c_stride);
    }
  }
  if constexpr (VECTORS > 1) {
    if (vectors < VECTORS) {
      return multiply_some<Number, ROWS, VECTORS - 1>(rows, vectors, a, a_stride, b, b_stride, items, factors, c, c_stride);
    }
  }
  multiply_rows_of<Number, ROWS, VECTORS>(a, a_stride, b, b_stride, items, factors, c, c_stride);
}

// Calls `work(first, count, keys)` for rows in tiles of about the same number of them; `keys` are those that any of them
// sees, in whole steps of STEP. Both ends of what a row sees grow with the rows.
template <int64_t STEP, typename Work>
void in_tiles(int64_t rows, const Keys* seen, const Work& work) {
  const int64_t tiles = (rows + MOST_TILE_ROWS - 1) / MOST_TILE_ROWS;
  for (int64_t tile = 0; tile < tiles; tile++) {
    const int64_t first = rows * tile / tiles, last = rows * (tile + 1) / tiles;
    work(first, last - first, Keys{seen[first].first / STEP * STEP, round_up(seen[last - 1].last, STEP)});
  }
}

// Scores [rows, ..] of `rows` queries, `stride` numbers apart, with the keys that they see, which lie in tiles. Other scores
// stay as they are, but for some of the same tiles.
template <typename Number>
void multiply_key_tiles(const Number* queries, int64_t stride, int64_t rows, const Keys* seen, const Number* keys, int64_t depth,
                        float* scores, int64_t scores_stride) {
  constexpr int64_t T = TOGETHER<Number>;
  const auto* left = reinterpret_cast<const int32_t*>(queries);
  in_tiles<LANES>(rows, seen, [&](int64_t first, int64_t count, Keys part) {
    for (int64_t column = part.first / KEY_TILE * KEY_TILE; column < part.last; column += KEY_TILE) {
      const auto* right = reinterpret_cast<const int32_t*>(keys + column * depth);
      const int64_t vectors = std::min<int64_t>((part.last - column) / LANES, MOST_VECTORS);
      multiply_some<Number>(count, vectors, left + first * stride / T, stride / T, right, KEY_TILE, depth / T, nullptr,
                            scores + first * scores_stride + column, scores_stride);
    }
  });
}

// means [rows, width] = factors means + weights [rows, ..] x values of the keys that the rows see; values lie as
// `pack_values` packs them.
template <typename Number>
void add_value_tiles(const Number* weights, int64_t stride, int64_t rows, const Keys* seen, const Number* values, int64_t width,
                     const float* factors, float* means) {
  constexpr int64_t T = TOGETHER<Number>;
  const auto* left = reinterpret_cast<const int32_t*>(weights);
  const auto* right = reinterpret_cast<const int32_t*>(values);
  in_tiles<T>(rows, seen, [&](int64_t first, int64_t count, Keys part) {
    for (int64_t column = 0; column < width; column += MOST_VECTORS * LANES) {
      const int64_t vectors = std::min<int64_t>((width - column) / LANES, MOST_VECTORS);
      multiply_some<Number>(count, vectors, left + (first * stride + part.first) / T, stride / T,
                            right + part.first / T * width + column, width, (part.last - part.first) / T, factors + first,
                            means + first * width + column, width);
    }
  });
}

}  // namespace selvage

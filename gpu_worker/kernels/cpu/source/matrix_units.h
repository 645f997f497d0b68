// Products of bfloat16 by matrix units (AMX): tiles of 16 rows of 64 bytes, named by numbers. Instructions stand by their
// names: the library serves processors without these units too, which `has_matrix_units` tells.
#pragma once
#include <cstdint>

#include "vectors.h"

namespace selvage {

constexpr int64_t TILE_SIDE = 16;     // rows of a tile, and columns of one of sums
constexpr int64_t TILE_BYTES = 64;    // of a row
constexpr int64_t TILE_NUMBERS = 32;  // of bfloat16 in a row: the depth of one step

// The sizes of all tiles, as the processor reads them.
struct alignas(64) TileSizes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {TILE_BYTES, TILE_BYTES, TILE_BYTES, TILE_BYTES, TILE_BYTES, TILE_BYTES, TILE_BYTES, TILE_BYTES};
  uint8_t rows[16] = {TILE_SIDE, TILE_SIDE, TILE_SIDE, TILE_SIDE, TILE_SIDE, TILE_SIDE, TILE_SIDE, TILE_SIDE};
};

// A thread that uses tiles has their sizes set first, and gives them back in the end.
inline void begin_tiles() {
  static constexpr TileSizes SIZES;
  asm volatile("ldtilecfg %0" ::"m"(SIZES));
}
inline void end_tiles() { asm volatile("tilerelease"); }

template <int TILE>
void zero_tile() {
  asm volatile("tilezero %%tmm%c0" ::"n"(TILE));
}

template <int TILE>
void load_tile(const void* from, int64_t row_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(row_bytes), "n"(TILE) : "memory");
}

template <int TILE>
void store_tile(void* to, int64_t row_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(row_bytes), "n"(TILE) : "memory");
}

template <int SUMS, int LEFT, int RIGHT>
void add_tile_products() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"n"(SUMS), "n"(LEFT), "n"(RIGHT));
}

// C = A B, or C += A B: A [16, 32 steps], B [16 steps, 16 COLUMNS, 2], C [16, 16 COLUMNS]. Strides in numbers, of B in pairs.
template <int COLUMNS, bool ADD>
void multiply_tiles(const BFloat16* a, int64_t a_stride, const BFloat16* b, int64_t b_stride, int64_t steps, float* c,
                    int64_t c_stride) {
  static_assert(COLUMNS > 0 && COLUMNS <= 4);
  const int64_t a_bytes = a_stride * 2, b_bytes = b_stride * 4, c_bytes = c_stride * 4;
  if constexpr (ADD) {
    load_tile<0>(c, c_bytes);
    if constexpr (COLUMNS > 1) load_tile<1>(c + TILE_SIDE, c_bytes);
    if constexpr (COLUMNS > 2) load_tile<2>(c + 2 * TILE_SIDE, c_bytes);
    if constexpr (COLUMNS > 3) load_tile<3>(c + 3 * TILE_SIDE, c_bytes);
  } else {
    zero_tile<0>(), zero_tile<1>(), zero_tile<2>(), zero_tile<3>();
  }
  for (int64_t step = 0; step < steps; step++, a += TILE_NUMBERS, b += TILE_NUMBERS * b_stride) {
    load_tile<4>(a, a_bytes);
    load_tile<5>(b, b_bytes), add_tile_products<0, 4, 5>();
    if constexpr (COLUMNS > 1) load_tile<6>(b + TILE_NUMBERS, b_bytes), add_tile_products<1, 4, 6>();
    if constexpr (COLUMNS > 2) load_tile<7>(b + 2 * TILE_NUMBERS, b_bytes), add_tile_products<2, 4, 7>();
    if constexpr (COLUMNS > 3) load_tile<5>(b + 3 * TILE_NUMBERS, b_bytes), add_tile_products<3, 4, 5>();
  }
  store_tile<0>(c, c_bytes);
  if constexpr (COLUMNS > 1) store_tile<1>(c + TILE_SIDE, c_bytes);
  if constexpr (COLUMNS > 2) store_tile<2>(c + 2 * TILE_SIDE, c_bytes);
  if constexpr (COLUMNS > 3) store_tile<3>(c + 3 * TILE_SIDE, c_bytes);
}

// The same for `columns`, a multiple of 16.
template <bool ADD>
void multiply_by_tiles(int64_t columns, const BFloat16* a, int64_t a_stride, const BFloat16* b, int64_t b_stride, int64_t steps,
                       float* c, int64_t c_stride) {
  for (; columns >= 4 * TILE_SIDE; columns -= 4 * TILE_SIDE, b += 4 * TILE_NUMBERS, c += 4 * TILE_SIDE) {
    multiply_tiles<4, ADD>(a, a_stride, b, b_stride, steps, c, c_stride);
  }
  switch (columns / TILE_SIDE) {
    case 3:
      return multiply_tiles<3, ADD>(a, a_stride, b, b_stride, steps, c, c_stride);
    case 2:
      return multiply_tiles<2, ADD>(a, a_stride, b, b_stride, steps, c, c_stride);
    case 1:
      return multiply_tiles<1, ADD>(a, a_stride, b, b_stride, steps, c, c_stride);
  }
}

}  // namespace selvage

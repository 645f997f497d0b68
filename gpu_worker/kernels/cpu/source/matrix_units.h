// Products by matrix units (AMX): tiles of 16 rows of 64 bytes, named by numbers. Numbers lie in items of 32 bits, two of
// bfloat16 or four bytes, as in `instructions.h`. Instructions stand by their names: a library for AVX-512 serves processors without
// these units too, which `has_matrix_units` tells; other libraries hold nothing of this.
#pragma once
#include <cstdint>
#include <type_traits>
#include <utility>

#include "ahead.h"
#include "vectors.h"

namespace selvage {

#ifdef CPU_CAPABILITY_AVX512
constexpr bool KNOWS_MATRIX_UNITS = true;
#else
constexpr bool KNOWS_MATRIX_UNITS = false;
#endif

constexpr int64_t TILE_SIDE = 16;   // rows of a tile, and columns of one of sums
constexpr int64_t TILE_ITEMS = 16;  // items of a row: the depth of one step
constexpr int64_t TILE_NUMBERS = TILE_ITEMS * 2;  // the same in numbers of bfloat16

// The sizes of all tiles, as the processor reads them. Tiles 0 to 4 have `side` rows: sums, and the first one of the left side.
struct alignas(64) TileSizes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {0, 0, 0, 0, 0, TILE_SIDE, TILE_SIDE, TILE_SIDE};

  explicit TileSizes(int64_t side) {
    for (int tile = 0; tile < 5; tile++) rows[tile] = static_cast<uint8_t>(side);
  }
};

// The `side` that tiles have in this thread; 0 before `begin_tiles`.
inline thread_local int64_t tile_side = 0;

// Sets the sizes of tiles, unless they are so already: an `ldtilecfg` takes some 200 cycles.
inline void begin_tiles(int64_t side = TILE_SIDE) {
  if (tile_side == side) return;
  const TileSizes sizes(side);
  asm volatile("ldtilecfg %0" ::"m"(sizes));
  tile_side = side;
}

// Called at the end of a parallel region.
inline void end_tiles() {
  if constexpr (KNOWS_MATRIX_UNITS) {
    if (tile_side > 0) asm volatile("tilerelease");
    tile_side = 0;
  }
}

template <int TILE>
void zero_tile() {
  asm volatile("tilezero %%tmm%c0" ::"n"(TILE));
}

// What a tile reads, or writes some of, is told to the compiler as bytes from `from` or `to` on, whose number it does not know.
template <int TILE>
void load_tile(const int32_t* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride * 4), "n"(TILE), "m"(*reinterpret_cast<const char(*)[]>(from)));
}

template <int TILE>
void store_tile(int32_t* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c3, (%1,%2,1)" : "+m"(*reinterpret_cast<char(*)[]>(to)) : "r"(to), "r"(stride * 4), "n"(TILE));
}

// Adds products of bfloat16, or those of unsigned bytes with signed ones, by the format of the left side.
template <typename Left, int SUMS, int LEFT, int RIGHT>
void add_tile_products() {
  if constexpr (sizeof(Left) == 2) {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"n"(SUMS), "n"(LEFT), "n"(RIGHT));
  } else {
    static_assert(std::is_same_v<Left, uint8_t>);
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"n"(SUMS), "n"(LEFT), "n"(RIGHT));
  }
}

// Calls `work` with each number below COUNT, as a constant.
template <int COUNT, typename Work>
[[gnu::always_inline]] inline void for_each_of(const Work& work) {
  [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    (work.template operator()<I>(), ...);
  }(std::make_integer_sequence<int, COUNT>());
}

// Items of 32 bits in rows, `stride` items apart.
template <typename Item>
struct ItemRows {
  Item* first;
  int64_t stride;
  Item* at(int64_t row, int64_t column) const { return first + row * stride + column; }
};

// C = A B, or C += A B: A [rows, 16 steps], B [16 steps, 16 COLUMNS], C [rows, 16 COLUMNS]. The rows are those of ROWS tiles,
// of which the second begins `apart` rows behind the first.
template <typename Left, int ROWS, int COLUMNS, bool ADD>
void multiply_tiles(ItemRows<const int32_t> a, ItemRows<const int32_t> b, int64_t steps, ItemRows<int32_t> c, int64_t apart,
                    Ahead ahead) {
  constexpr int SUMS = ROWS * COLUMNS, LEFT = 4, RIGHT = LEFT + ROWS;  // the first tiles of both sides: see `TileSizes`
  static_assert(SUMS <= LEFT && ROWS <= 2);
  for_each_of<SUMS>([&]<int I>() __attribute__((always_inline)) {
    if constexpr (ADD) {
      load_tile<I>(c.at(I / COLUMNS * apart, I % COLUMNS * TILE_SIDE), c.stride);
    } else {
      zero_tile<I>();
    }
  });
  for (int64_t step = 0; step < steps; step++) {
    ahead.ask();
    for_each_of<ROWS>([&]<int ROW>() __attribute__((always_inline)) { load_tile<LEFT + ROW>(a.at(ROW * apart, step * TILE_ITEMS), a.stride); });
    for_each_of<COLUMNS>([&]<int COLUMN>() __attribute__((always_inline)) {
      constexpr int TILE = RIGHT + COLUMN % (8 - RIGHT);
      load_tile<TILE>(b.at(step * TILE_ITEMS, COLUMN * TILE_SIDE), b.stride);
      for_each_of<ROWS>([&]<int ROW>() __attribute__((always_inline)) { add_tile_products<Left, ROW * COLUMNS + COLUMN, LEFT + ROW, TILE>(); });
    });
  }
  for_each_of<SUMS>([&]<int I>() __attribute__((always_inline)) { store_tile<I>(c.at(I / COLUMNS * apart, I % COLUMNS * TILE_SIDE), c.stride); });
}

// C = A B, or C += A B for one row of tiles, in bfloat16: A [16, 32 steps], B [16 steps, columns, 2], C [16, columns]. Strides in
// numbers, of B in pairs; `columns`, a multiple of 16.
template <bool ADD>
void multiply_row_of_tiles(int64_t columns, const BFloat16* a, int64_t a_stride, const BFloat16* b, int64_t b_stride,
                           int64_t steps, float* c, int64_t c_stride) {
  const ItemRows<const int32_t> left{reinterpret_cast<const int32_t*>(a), a_stride / 2};
  const ItemRows<const int32_t> right{reinterpret_cast<const int32_t*>(b), b_stride};
  const ItemRows<int32_t> sums{reinterpret_cast<int32_t*>(c), c_stride};
  for (int64_t column = 0; column < columns;) {
    const auto multiply = [&]<int COLUMNS>() {
      multiply_tiles<BFloat16, 1, COLUMNS, ADD>(left, {right.at(0, column), b_stride}, steps, {sums.at(0, column), c_stride}, 0, {});
      column += COLUMNS * TILE_SIDE;
    };
    switch ((columns - column) / TILE_SIDE) {
      case 1:
        multiply.template operator()<1>();
        break;
      case 2:
        multiply.template operator()<2>();
        break;
      case 3:
        multiply.template operator()<3>();
        break;
      default:
        multiply.template operator()<4>();
    }
  }
}

}  // namespace selvage

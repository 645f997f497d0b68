// Products of rows with blocks of weights that lie as `LayerShape` says.
//
// Matrix units (AMX) multiply bfloat16, and int8 in whole tiles, where they are; else vectors. Both ask for the memory of the
// next block while they multiply one: brgemm waits for it when a block begins. It serves where vectors lack a format. Sums
// run in its order everywhere.
#pragma once
#include <ATen/cpu/Utils.h>

#include <algorithm>
#include <cstring>

#include "ahead.h"
#include "instructions.h"
#include "matrix_units.h"
#include "products.h"
#include "scratch.h"

namespace selvage {

constexpr int64_t GROUP = 8;  // items of a row between two looks ahead

// A [ROWS, items] x B [items, vectors] -> C [ROWS, vectors], in items of 32 bits. B and C are VECTORS vectors of a block
// that is BLOCK outputs wide.
template <typename Instructions, int64_t BLOCK, int ROWS, int VECTORS>
void multiply_tile(const int32_t* a, int64_t a_stride, const int32_t* b, int64_t items, int32_t* c, Ahead ahead) {
  using Sums = typename Instructions::Sums;
  Sums sums[ROWS][VECTORS];
#pragma GCC unroll 12
  for (int row = 0; row < ROWS; row++) {
#pragma GCC unroll 4
    for (int i = 0; i < VECTORS; i++) sums[row][i] = Sums{};
  }
  for (int64_t group = 0; group < items; group += GROUP) {
    ahead.ask();
    for (int64_t item = group; item < group + GROUP; item++, b += BLOCK) {
      Items right[VECTORS];
      for (int i = 0; i < VECTORS; i++) right[i] = load_items(b + LANES * i);
      for (int row = 0; row < ROWS; row++) {
        int32_t number;
        std::memcpy(&number, a + row * a_stride + item, sizeof(number));
        const Items left = everywhere(number);
        for (int i = 0; i < VECTORS; i++) sums[row][i] = Instructions::add(sums[row][i], left, right[i]);
      }
    }
  }
#pragma GCC unroll 12
  for (int row = 0; row < ROWS; row++, c += BLOCK) {
#pragma GCC unroll 4
    for (int i = 0; i < VECTORS; i++) store_items(c + LANES * i, sums[row][i]);
  }
}

// The same for `rows` rows, of at most ROWS.
template <typename Instructions, int64_t BLOCK, int VECTORS, int ROWS = MOST_SUMS / VECTORS>
void multiply_rows(int64_t rows, const int32_t* a, int64_t a_stride, const int32_t* b, int64_t items, int32_t* c, Ahead ahead) {
  if constexpr (ROWS > 0) {
    if (rows == ROWS) return multiply_tile<Instructions, BLOCK, ROWS, VECTORS>(a, a_stride, b, items, c, ahead);
    multiply_rows<Instructions, BLOCK, VECTORS, ROWS - 1>(rows, a, a_stride, b, items, c, ahead);
  }
}

// See `multiply_blocks`; for blocks of BLOCK outputs.
template <typename Instructions, int64_t BLOCK, typename Sum, typename Left, typename Right, typename Use>
void multiply_by_vectors(const Left* x, int64_t stride, int64_t rows, const Right* weight, int64_t inputs, int64_t first,
                         int64_t last, const void* after, const Use& use) {
  constexpr int64_t VECTORS = std::min(BLOCK / LANES, TILE_VECTORS), COLUMNS = LANES * VECTORS, MOST = MOST_SUMS / VECTORS;
  constexpr int64_t T = TOGETHER<Right>;
  const int64_t tiles = (rows + MOST - 1) / MOST, items = inputs / T, groups = items / GROUP;
  if (tiles == 0) return;
  const auto* left = reinterpret_cast<const int32_t*>(x);
  const auto* right = reinterpret_cast<const int32_t*>(weight) + first * BLOCK * items;
  alignas(64) Sum sums[MOST * BLOCK];
  for (int64_t part = first; part < last; part++, right += BLOCK * items) {
    const auto* next = part + 1 < last ? right + BLOCK * items : static_cast<const int32_t*>(after);
    Ahead ahead = Ahead::of(next, items * BLOCK, tiles * BLOCK / COLUMNS * groups);
    for (int64_t tile = 0; tile < tiles; tile++) {
      const int64_t row = rows * tile / tiles, count = rows * (tile + 1) / tiles - row;
      const int32_t* numbers = left + row * stride / T;
      for (int64_t column = 0; column < BLOCK; column += COLUMNS, ahead.skip(groups)) {
        auto* products = reinterpret_cast<int32_t*>(sums + column);
        multiply_rows<Instructions, BLOCK, VECTORS>(count, numbers, stride / T, right + column, items, products, ahead);
      }
      for (int64_t i = 0; i < count; i++) use(row + i, part * BLOCK, sums + i * BLOCK);
    }
  }
}

// See `multiply_blocks`; for blocks of BLOCK outputs, by tiles of 16 rows, two by two, so that each tile of weights serves 32
// rows. The last tiles of rows lie over others, where some are left. Fewer rows than 16 are one smaller tile.
template <int64_t BLOCK, typename Sum, typename Left, typename Right, typename Use>
void multiply_by_tiles(const Left* x, int64_t stride, int64_t rows, const Right* weight, int64_t inputs, int64_t first,
                       int64_t last, const void* after, const Use& use) {
  constexpr int64_t T = TOGETHER<Right>, PAIR = 2 * TILE_SIDE;
  const int64_t items = inputs / T, steps = items / TILE_ITEMS, side = std::min(rows, TILE_SIDE);
  const int64_t tiles = (rows + TILE_SIDE - 1) / TILE_SIDE, looks = (tiles / 2 * (BLOCK / PAIR) + tiles % 2) * steps;
  if (tiles == 0) return;
  begin_tiles(side);
  const ItemRows<const int32_t> left{reinterpret_cast<const int32_t*>(x), stride / T};
  const auto* right = reinterpret_cast<const int32_t*>(weight) + first * BLOCK * items;
  alignas(64) Sum sums[PAIR * BLOCK];
  const ItemRows<int32_t> products{reinterpret_cast<int32_t*>(sums), BLOCK};
  for (int64_t part = first; part < last; part++, right += BLOCK * items) {
    Ahead ahead = Ahead::of(part + 1 < last ? right + BLOCK * items : static_cast<const int32_t*>(after), items * BLOCK, looks);
    for (int64_t row = 0; row < rows; row += PAIR) {
      const int64_t begin = std::min(row, rows - side), apart = std::min(begin + TILE_SIDE, rows - side) - begin;
      const ItemRows<const int32_t> some{left.at(begin, 0), left.stride};
      if (apart == 0) {
        multiply_tiles<Left, 1, BLOCK / TILE_SIDE, false>(some, {right, BLOCK}, steps, products, 0, ahead);
        ahead.skip(steps);
      } else {
        for (int64_t column = 0; column < BLOCK; column += PAIR, ahead.skip(steps)) {
          multiply_tiles<Left, 2, 2, false>(some, {right + column, BLOCK}, steps, {products.at(0, column), BLOCK}, apart, ahead);
        }
      }
      for (int64_t i = row; i < std::min(rows, row + PAIR); i++) use(i, part * BLOCK, sums + (i - begin) * BLOCK);
    }
  }
}

// Whether the processor has these instructions, by PyTorch's name of them.
inline bool has_instructions(const char* name) {
  const auto capabilities = at::cpu::get_cpu_capabilities();
  const auto found = capabilities.find(name);
  return found != capabilities.end() && found->second.toBool();
}

// Whether matrix units multiply this format here. A library for AVX2 serves where something forbids more.
template <typename Left>
bool has_matrix_units() {
  if constexpr (!KNOWS_MATRIX_UNITS || sizeof(Left) == 4) return false;
  // A process must ask the system for their registers.
  static const bool found = has_instructions(sizeof(Left) == 2 ? "amx_bf16" : "amx_int8") && at::cpu::init_amx();
  return found;
}

// Whether products of this format run by vectors here.
template <typename Number>
bool by_vectors() {
  return HasLanes<Number> && !has_matrix_units<Number>();
}

// Calls `use` with the lanes for this format, as far as they are known only at run time.
template <typename Left, typename Use>
void with_lanes(const Use& use) {
#if defined(__x86_64__) && !defined(__AVX512VNNI__)
  if constexpr (sizeof(Left) == 1) {
    static const bool has_vnni = has_instructions(VNNI);
    if (!has_vnni) return use.template operator()<PairLanes>();
  }
#endif
  use.template operator()<Lanes<Left>>();
}

// Multiplies `rows` rows x, `stride` numbers apart, with blocks `first` to `last` - 1 of weights, of `block` outputs each,
// which are 64 or 32. Calls `use(row, column, sums)` with the sums of each row and block, whose first output is `column`. A
// row's sums run in one order, whatever the number of rows. `after`: weights that are read next, or none; they are asked
// for with the last block.
template <typename Sum, typename Left, typename Right, typename Use>
void multiply_blocks(const Left* x, int64_t stride, int64_t rows, const Right* weight, int64_t inputs, int64_t block,
                     int64_t first, int64_t last, const void* after, Scratch& scratch, const Use& use) {
  if constexpr (KNOWS_MATRIX_UNITS && sizeof(Left) < 4) {
    const bool whole_steps = inputs % (TOGETHER<Right> * TILE_ITEMS) == 0;
    if (has_matrix_units<Left>() && whole_steps) {
      return block == 64 ? multiply_by_tiles<64, Sum>(x, stride, rows, weight, inputs, first, last, after, use)
                         : multiply_by_tiles<32, Sum>(x, stride, rows, weight, inputs, first, last, after, use);
    }
  }
  if constexpr (HasLanes<Left>) {
    return with_lanes<Left>([&]<typename Instructions>() {
      block == 64 ? multiply_by_vectors<Instructions, 64, Sum>(x, stride, rows, weight, inputs, first, last, after, use)
                  : multiply_by_vectors<Instructions, 32, Sum>(x, stride, rows, weight, inputs, first, last, after, use);
    });
  } else {
    Sum* sums = scratch.take<Sum>(rows * block);
    for (int64_t part = first; part < last; part++) {
      multiply(rows, block, inputs, x, stride, weight + part * block * inputs, block, sums, block, false);
      for (int64_t row = 0; row < rows; row++) use(row, part * block, sums + row * block);
    }
  }
}

}  // namespace selvage

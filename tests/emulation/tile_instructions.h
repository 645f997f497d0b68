// Instructions of AMX for bfloat16 and int8 (Intel's manual, volume 2, chapter 3: LDTILECFG, TILELOADD, TDPBF16PS, ...).
#pragma once
#include <cstdlib>

#include "instruction.h"
#include "numbers.h"

namespace emulation {

// The eight tiles of a thread, of up to 16 rows of 64 bytes each.
struct Tiles {
  struct {
    uint8_t palette, first_row, reserved[14];
    uint16_t columns[16];  // in bytes
    uint8_t rows[16];
  } shape;
  Vector rows[8][16];
};

inline thread_local Tiles tiles;

inline int32_t byte_of(uint32_t word, int bit, bool is_signed) {
  return is_signed ? int32_t{static_cast<int8_t>(word >> bit)} : int32_t{static_cast<uint8_t>(word >> bit)};
}

// Adds the products of a row of the left tile with the right tile to a row of sums.
inline void add_products(Vector& sums, const Vector& left, const Vector* right, int depth, int columns, bool floats, int prefix) {
  const bool signed_left = prefix == XF2 || prefix == XF3, signed_right = prefix == XF2 || prefix == X66;
  float even[16] = {}, odd[16] = {};
  for (int k = 0; k < depth; k++) {
    for (int i = 0; i < columns; i++) {
      if (floats) {
        even[i] = added(even[i], left.halves[2 * k], right[k].halves[2 * i]);
        odd[i] = added(odd[i], left.halves[2 * k + 1], right[k].halves[2 * i + 1]);
        continue;
      }
      for (int bit = 0; bit < 32; bit += 8) {
        sums.words[i] += byte_of(left.words[k], bit, signed_left) * byte_of(right[k].words[i], bit, signed_right);
      }
    }
  }
  for (int i = 0; floats && i < columns; i++) sums.floats[i] = flushed(sums.floats[i] + (even[i] + odd[i]));
}

// Runs the instruction; false where it is none of these.
inline bool run_tile_instruction(Registers&, const Instruction& it) {
  if (it.evex) return false;
  auto& [shape, rows] = tiles;
  Vector* const tile = rows[it.reg & 7];
  auto* const memory = reinterpret_cast<uint8_t*>(it.address);
  const int height = shape.rows[it.reg & 7], width = shape.columns[it.reg & 7];
  if (it.opcode != 0x49 && !shape.palette) return false;  // as the processor, which raises #UD
  if (it.opcode == 0x49 && it.memory && it.prefix == NONE) {
    tiles = {};
    std::memcpy(&shape, memory + it.index, sizeof shape);
  } else if (it.opcode == 0x49 && it.memory && it.prefix == X66) {
    std::memcpy(memory + it.index, &shape, sizeof shape);
  } else if (it.opcode == 0x49 && !it.memory && it.prefix == NONE) {
    tiles = {};
  } else if (it.opcode == 0x49 && !it.memory && it.prefix == XF2) {
    std::memset(tile, 0, sizeof rows[0]);
  } else if (it.opcode == 0x4b && it.memory && (it.prefix == XF2 || it.prefix == X66)) {
    std::memset(tile, 0, sizeof rows[0]);
    for (int row = 0; row < height; row++) std::memcpy(&tile[row], memory + row * it.index, width);
  } else if (it.opcode == 0x4b && it.memory && it.prefix == XF3) {
    for (int row = 0; row < height; row++) std::memcpy(memory + row * it.index, &tile[row], width);
  } else if ((it.opcode == 0x5c && it.prefix == XF3) || it.opcode == 0x5e) {
    const int left = it.rm & 7, right = it.vvvv & 7, sums = it.reg & 7, depth = shape.columns[left] / 4;
    const bool distinct = sums != left && sums != right && left != right;
    if (!distinct || depth != shape.rows[right] || shape.rows[sums] != shape.rows[left] ||
        shape.columns[sums] != shape.columns[right]) {
      std::abort();  // the processor would raise #UD
    }
    for (int row = 0; row < height; row++) {
      const bool floats = it.opcode == 0x5c;
      add_products(tile[row], rows[it.rm & 7][row], rows[it.vvvv & 7], depth, width / 4, floats, it.prefix);
    }
  } else {
    return false;
  }
  return true;
}

}  // namespace emulation

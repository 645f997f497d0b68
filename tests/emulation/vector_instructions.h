// Instructions of AVX512_BF16, AVX512_VNNI and AVX-VNNI (Intel's manual, volume 2: VCVTNE2PS2BF16, VCVTNEPS2BF16, VDPBF16PS,
// VPDPBUSD(S), VPDPWSSD(S)).
#pragma once
#include <algorithm>
#include <limits>

#include "instruction.h"
#include "numbers.h"

namespace emulation {

// Four products of unsigned and signed bytes, or two of signed numbers of 16 bits, are added to a sum of 32 bits.
inline uint32_t added_integers(uint32_t sum, uint32_t left, uint32_t right, bool bytes, bool saturating) {
  int64_t total = static_cast<int32_t>(sum);
  for (int bit = 0; bit < 32; bit += bytes ? 8 : 16) {
    total += bytes ? int64_t{static_cast<uint8_t>(left >> bit)} * static_cast<int8_t>(right >> bit)
                   : int64_t{static_cast<int16_t>(left >> bit)} * static_cast<int16_t>(right >> bit);
  }
  using Limits = std::numeric_limits<int32_t>;
  return saturating ? std::clamp<int64_t>(total, Limits::min(), Limits::max()) : total;
}

// The operand that may lie in memory. Of elements outside of the mask nothing is read.
inline Vector operand(Registers& registers, const Instruction& it, uint64_t mask) {
  if (!it.memory) return registers.vector(it.rm);
  Vector vector{};
  const auto* from = reinterpret_cast<const uint8_t*>(it.address + it.index);
  for (int i = 0; i < it.bytes / 4; i++) {
    if (mask >> i & 1) std::memcpy(&vector.words[i], from + (it.broadcast ? 0 : 4 * i), 4);
  }
  return vector;
}

// Runs the instruction; false where it is none of these.
inline bool run_vector_instruction(Registers& registers, const Instruction& it) {
  const bool conversion = it.opcode == 0x72 && (it.prefix == XF3 || it.prefix == XF2), of_two = it.prefix == XF2;
  const bool products = it.opcode == 0x52 && it.prefix == XF3;
  const bool integers = it.opcode >= 0x50 && it.opcode <= 0x53 && it.prefix == X66;
  if (!(it.evex ? conversion || products || integers : integers)) return false;
  const uint64_t mask = registers.mask(it.mask);
  const int elements = it.bytes / 4;
  const Vector right = operand(registers, it, conversion && of_two ? ~uint64_t{0} : mask);
  const Vector left = registers.vector(it.vvvv), before = registers.vector(it.reg);
  Vector result{};
  for (int i = 0; i < (conversion && of_two ? 2 * elements : elements); i++) {
    const bool masked = !(mask >> i & 1);
    if (conversion) {
      const uint32_t number = i < elements ? right.words[i] : left.words[i - elements];
      result.halves[i] = !masked ? rounded(number) : it.zeroing ? 0 : before.halves[i];
    } else if (masked) {
      result.words[i] = it.zeroing ? 0 : before.words[i];
    } else if (products) {
      const float upper = added(flushed(before.floats[i]), left.halves[2 * i + 1], right.halves[2 * i + 1]);
      result.floats[i] = added(upper, left.halves[2 * i], right.halves[2 * i]);
    } else {
      const bool bytes = it.opcode < 0x52, saturating = it.opcode & 1;
      result.words[i] = added_integers(before.words[i], left.words[i], right.words[i], bytes, saturating);
    }
  }
  registers.set_vector(it.reg, result);
  return true;
}

}  // namespace emulation

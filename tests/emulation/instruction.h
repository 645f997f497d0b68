// What an instruction of the map 0F 38 with a prefix VEX or EVEX says (Intel's manual, volume 2, sections 2.3 and 2.7).
#pragma once
#include "registers.h"

namespace emulation {

// The prefix of older instructions that VEX and EVEX encode in two bits.
enum Prefix { NONE, X66, XF3, XF2 };

struct Instruction {
  bool evex;              // VEX where it is false
  int opcode, prefix;     // the second is a Prefix
  int reg, vvvv, rm;      // numbers of registers, by the fields that hold them; `rm` means nothing with memory
  int bytes;              // of a vector
  int mask;               // number of the mask register
  bool zeroing;           // elements outside of the mask become zero; they keep what they were otherwise
  bool broadcast;         // memory holds one number of 32 bits for all elements
  bool memory;            // the operand `rm` lies in memory,
  uint64_t address;       // at this place, without its index register,
  int64_t index;          // and this is that register's part, scaled
  const uint8_t* behind;  // the instruction that follows
};

// Reads the instruction at which a thread stopped. False where it is none of this map and these prefixes.
inline bool read(Registers& registers, Instruction& it) {
  const uint8_t* code = registers.next_instruction();
  it = {};
  it.evex = code[0] == 0x62;
  if (!it.evex && code[0] != 0xc4) return false;
  if ((code[1] & (it.evex ? 0x0f : 0x1f)) != 2) return false;
  // Bits that name registers 8 and above, and 16 and above, are stored inverted.
  const int r = ~code[1] >> 7 & 1, x = ~code[1] >> 6 & 1, b = ~code[1] >> 5 & 1;
  const bool wide = code[2] >> 7;
  if (wide) return false;
  it.prefix = code[2] & 3, it.vvvv = ~code[2] >> 3 & 15, it.bytes = code[2] & 4 ? 32 : 16;
  int upper = 0;
  if (it.evex) {
    upper = ~code[1] >> 4 & 1;
    it.vvvv |= (~code[3] >> 3 & 1) << 4;
    it.zeroing = code[3] >> 7, it.broadcast = code[3] >> 4 & 1, it.mask = code[3] & 7, it.bytes = 16 << (code[3] >> 5 & 3);
    if (it.bytes > 64) return false;
  }
  code += it.evex ? 4 : 3;
  it.opcode = *code++;
  const int mode = *code >> 6, low = *code & 7;
  it.reg = (*code++ >> 3 & 7) | r << 3 | upper << 4;
  it.rm = low | b << 3 | (it.evex ? x << 4 : 0);
  it.memory = mode != 3;
  if (it.memory) {
    int base = low | b << 3;
    const bool scaled = low == 4;
    if (scaled) {
      const int index = (*code >> 3 & 7) | x << 3;
      if (index != 4) it.index = registers.general(index) << (*code >> 6);
      base = (*code++ & 7) | b << 3;
    }
    const bool no_base = mode == 0 && (base & 7) == 5;
    int32_t distance = 0;
    if (mode == 1) {
      const int unit = !it.evex ? 1 : it.broadcast ? 4 : it.bytes;
      distance = static_cast<int8_t>(*code++) * unit;
    } else if (mode == 2 || no_base) {
      std::memcpy(&distance, code, 4);
      code += 4;
    }
    const bool to_code = no_base && !scaled;  // counted from the instruction that follows
    const uint64_t from = to_code ? reinterpret_cast<uint64_t>(code) : no_base ? 0 : registers.general(base);
    it.address = from + static_cast<int64_t>(distance);
  }
  it.behind = code;
  return true;
}

}  // namespace emulation

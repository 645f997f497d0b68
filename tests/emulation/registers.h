// The registers of a thread that a signal interrupted, as the kernel lays them on its stack and reads them back from there.
#pragma once
#include <cpuid.h>
#include <ucontext.h>

#include <cstdint>
#include <cstring>

namespace emulation {

// 512 bits of a vector register, as bytes, whole numbers of 32 bits, or float32.
union Vector {
  uint8_t bytes[64];
  uint16_t halves[32];
  uint32_t words[16];
  float floats[16];
};

// Parts of a thread's state and their numbers in XSAVE's header (Intel's manual, volume 1, chapter 13).
enum Component { FIRST_QUARTERS = 1, SECOND_QUARTERS = 2, MASKS = 5, UPPER_HALVES = 6, LAST_SIXTEEN = 7 };

class Registers {
 public:
  explicit Registers(void* context)
      : general_(static_cast<ucontext_t*>(context)->uc_mcontext.gregs),
        state_(reinterpret_cast<uint8_t*>(static_cast<ucontext_t*>(context)->uc_mcontext.fpregs)) {}

  // A general register by the number that instructions have for it: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15.
  greg_t& general(int number) {
    static constexpr int PLACES[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                     REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return general_[PLACES[number]];
  }

  const uint8_t* next_instruction() const { return reinterpret_cast<const uint8_t*>(general_[REG_RIP]); }
  void go_on_at(const uint8_t* instruction) { general_[REG_RIP] = reinterpret_cast<greg_t>(instruction); }

  Vector vector(int number) {
    Vector vector;
    if (number >= 16) {
      std::memcpy(vector.bytes, part(LAST_SIXTEEN, 1024) + 64 * (number - 16), 64);
    } else {
      std::memcpy(vector.bytes, part(FIRST_QUARTERS, 256) + 16 * number, 16);
      std::memcpy(vector.bytes + 16, part(SECOND_QUARTERS, 256) + 16 * number, 16);
      std::memcpy(vector.bytes + 32, part(UPPER_HALVES, 512) + 32 * number, 32);
    }
    return vector;
  }

  void set_vector(int number, const Vector& vector) {
    if (number >= 16) {
      std::memcpy(part(LAST_SIXTEEN, 1024) + 64 * (number - 16), vector.bytes, 64);
    } else {
      std::memcpy(part(FIRST_QUARTERS, 256) + 16 * number, vector.bytes, 16);
      std::memcpy(part(SECOND_QUARTERS, 256) + 16 * number, vector.bytes + 16, 16);
      std::memcpy(part(UPPER_HALVES, 512) + 32 * number, vector.bytes + 32, 32);
    }
  }

  // A mask register; number 0 stands for all elements.
  uint64_t mask(int number) {
    uint64_t mask = ~uint64_t{0};
    if (number > 0) std::memcpy(&mask, part(MASKS, 64) + 8 * number, 8);
    return mask;
  }

 private:
  // A component of `size` bytes. Where the header does not name it, all of it is zero, whatever lies there.
  uint8_t* part(Component component, size_t size) {
    static const auto places = [] {
      struct { unsigned of[8]; } places{};
      places.of[FIRST_QUARTERS] = 160;  // in the part that FXSAVE had
      for (const int other : {SECOND_QUARTERS, MASKS, UPPER_HALVES, LAST_SIXTEEN}) {
        unsigned bytes, rest;
        __cpuid_count(0xd, other, bytes, places.of[other], rest, rest);
      }
      return places;
    }();
    uint64_t& present = *reinterpret_cast<uint64_t*>(state_ + 512);
    uint8_t* const place = state_ + places.of[component];
    if (!(present >> component & 1)) std::memset(place, 0, size);
    present |= uint64_t{1} << component;
    return place;
  }

  greg_t* general_;
  uint8_t* state_;
};

}  // namespace emulation

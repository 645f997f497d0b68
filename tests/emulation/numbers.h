// Numbers as AVX512_BF16 and AMX compute with them: rounded to the nearest, ties to even; subnormal ones are zero.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace emulation {

inline float flushed(float number) { return std::fpclassify(number) == FP_SUBNORMAL ? std::copysign(0.0f, number) : number; }

inline float widened(uint16_t bfloat16) {
  const uint32_t bits = uint32_t{bfloat16} << 16;
  float number;
  std::memcpy(&number, &bits, 4);
  return flushed(number);
}

inline uint16_t rounded(uint32_t float32) {
  const uint32_t exponent = float32 >> 23 & 0xff, fraction = float32 & 0x7fffff;
  if (exponent == 0) return float32 >> 16 & 0x8000;
  if (exponent == 0xff && fraction != 0) return float32 >> 16 | 0x40;  // not a number
  return (float32 + 0x7fff + (float32 >> 16 & 1)) >> 16;
}

inline float added(float sum, uint16_t left, uint16_t right) {
  return flushed(std::fma(widened(left), widened(right), sum));
}

}  // namespace emulation

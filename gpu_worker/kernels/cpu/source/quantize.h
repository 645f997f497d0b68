// Rows of numbers as integers of 8 bits.
#pragma once
#include <algorithm>
#include <cstdint>

#include "vectors.h"

namespace selvage {

constexpr float STEPS = 255.0f;
constexpr float SMALLEST_STEP = 1e-30f;  // of a row whose numbers are all equal

// Integers from 0 to 255 as bytes.
inline void store_bytes(uint8_t* to, Integers numbers) {
#ifdef CPU_CAPABILITY_AVX512
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(numbers));
#else
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(numbers), _mm256_extracti128_si256(numbers, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(words, words));
#endif
}

// x [count] -> q [count] from 0 to 255, where x = step * q + least up to half a step. 0 is among the numbers that a row
// spans, as it is among those that ReLU and GELU give most.
template <typename Number>
inline void quantize(const Number* x, int64_t count, uint8_t* q, float& step, float& least) {
  Vector low(0.0f), high(0.0f);
  for (int64_t i = 0; i < count; i += WIDTH) {
    low = at::vec::minimum(low, load(x + i));
    high = at::vec::maximum(high, load(x + i));
  }
  least = -largest(Vector(0.0f) - low);
  step = std::max((largest(high) - least) / STEPS, SMALLEST_STEP);
  const Vector factor(1.0f / step), offset(-least / step);
  for (int64_t i = 0; i < count; i += WIDTH) {
    const Vector steps = at::vec::clamp(at::vec::fmadd(load(x + i), factor, offset), Vector(0.0f), Vector(STEPS));
    store_bytes(q + i, at::vec::convert_to_int_of_same_size<float>(steps.round()));
  }
}

}  // namespace selvage

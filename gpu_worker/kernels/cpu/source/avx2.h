// AVX2 with FMA and F16C: see `instructions.h`.
#pragma once
#include <immintrin.h>

namespace selvage {

inline void spin() { _mm_pause(); }

inline Vector load(const BFloat16* row) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
inline Vector load(const Half* row) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row))); }

inline Vector at_least(Vector bound, Vector x) { return _mm256_max_ps(bound, x); }
inline Vector at_most(Vector bound, Vector x) { return _mm256_min_ps(bound, x); }

inline Vector reciprocal(Vector x) { return Vector(1.0f) / x; }

inline Vector scaled(Vector x, Vector power, Vector least) {
  const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(power), 23);  // 0 for NaN
  const Vector product = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), exponent));
  return _mm256_and_ps(product, _mm256_cmp_ps(power, least, _CMP_NLT_UQ));
}

inline void store_bytes(uint8_t* to, Integers numbers) {
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(numbers), _mm256_extracti128_si256(numbers, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(words, words));
}

using Items = __m256i;
using Floats = __m256;
constexpr int64_t MOST_SUMS = 12;
constexpr int64_t TILE_VECTORS = 2;
constexpr char VNNI[] = "avx_vnni";  // PyTorch's name of instructions that multiply bytes

inline Items load_items(const int32_t* from) { return _mm256_loadu_si256(reinterpret_cast<const Items*>(from)); }
inline Items everywhere(int32_t item) { return _mm256_set1_epi32(item); }
inline void store_items(int32_t* to, Items items) { _mm256_storeu_si256(reinterpret_cast<Items*>(to), items); }

// Bytes without VNNI: products of two neighbours are added in 16 bits, which those of `int8.py` fit into, and then in 32.
struct PairLanes {
  using Sums = Items;
  static Sums add(Sums sums, Items a, Items b) {
    return _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)));
  }
};

// A compiler that knows AVX-VNNI has its header; its assembler is taken to know it too.
#if __has_include(<avxvnniintrin.h>)
template <>
struct Lanes<uint8_t> {
  using Sums = Items;
  static Sums add(Sums sums, Items a, Items b) {  // by its name: most processors that load this library lack AVX-VNNI
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sums) : "x"(a), "x"(b));
    return sums;
  }
};
#else
template <>
struct Lanes<uint8_t> : PairLanes {};
#endif

}  // namespace selvage

// AVX-512, and what more a processor with it may have: see `instructions.h`.
#pragma once
#include <immintrin.h>

namespace selvage {

inline void spin() { _mm_pause(); }

inline Vector load(const BFloat16* row) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
inline Vector load(const Half* row) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row))); }

// Rounds to the nearest bfloat16, ties to even, as PyTorch does.
inline __m256i rounded(Vector x) {
#ifdef __AVX512BF16__
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
#else
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_set1_epi32(up, nan, 0x7fc00000), 16));
#endif
}

inline void store(BFloat16* row, Vector x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(row), rounded(x)); }

// Two vectors, one behind the other.
inline void store(BFloat16* row, Vector x, Vector y) {
#ifdef __AVX512BF16__
  _mm512_storeu_si512(row, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(y, x)));
#else
  store(row, x), store(row + WIDTH, y);
#endif
}

inline Vector at_least(Vector bound, Vector x) { return _mm512_max_ps(bound, x); }
inline Vector at_most(Vector bound, Vector x) { return _mm512_min_ps(bound, x); }

inline Vector reciprocal(Vector x) {
  const Vector near(_mm512_rcp14_ps(x));  // to 2^-14; a step of Newton's doubles the digits
  return at::vec::fmadd(near, at::vec::fnmadd(x, near, Vector(1.0f)), near);
}

inline Vector scaled(Vector x, Vector power, Vector least) {
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(power, least, _CMP_NLT_UQ), x, power);
}

inline void store_bytes(uint8_t* to, Integers numbers) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(numbers));
}

using Items = __m512i;
using Floats = __m512;
constexpr int64_t MOST_SUMS = 24;
constexpr int64_t TILE_VECTORS = 4;
constexpr char VNNI[] = "avx512_vnni";  // PyTorch's name of instructions that multiply bytes

inline Items load_items(const int32_t* from) { return _mm512_loadu_si512(from); }
inline Items everywhere(int32_t item) { return _mm512_set1_epi32(item); }
inline void store_items(int32_t* to, Items items) { _mm512_storeu_si512(to, items); }
inline void store_items(int32_t* to, Floats items) { _mm512_storeu_ps(to, items); }

template <>
struct Lanes<float> {
  using Sums = Floats;
  static Sums add(Sums sums, Items a, Items b) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), sums);
  }
};

#ifdef __AVX512BF16__
template <>
struct Lanes<BFloat16> {
  using Sums = Floats;
  static Sums add(Sums sums, Items a, Items b) {
    return _mm512_dpbf16_ps(sums, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
};
#endif

template <>
struct Lanes<uint8_t> {
  using Sums = Items;
  static Sums add(Sums sums, Items a, Items b) {
#ifdef __AVX512VNNI__
    return _mm512_dpbusd_epi32(sums, a, b);
#else  // by its name: Cascade Lake and Ice Lake have VNNI, and load the library for processors without AVX512_BF16
    asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(a), "v"(b));
    return sums;
#endif
  }
};

// Bytes without VNNI: products of two neighbours are added in 16 bits, which those of `int8.py` fit into, and then in 32.
struct PairLanes {
  using Sums = Items;
  static Sums add(Sums sums, Items a, Items b) {
    return _mm512_add_epi32(sums, _mm512_madd_epi16(_mm512_maddubs_epi16(a, b), _mm512_set1_epi16(1)));
  }
};

}  // namespace selvage

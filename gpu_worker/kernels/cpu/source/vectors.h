// Vectors of float32, 16 numbers with AVX-512 and 8 with AVX2: reading and writing rows, and functions of numbers.
#pragma once
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <cstdint>
#include <limits>

namespace selvage {

using c10::BFloat16;
using c10::Half;
using Vector = at::vec::Vectorized<float>;
using Integers = at::vec::Vectorized<int32_t>;
constexpr int64_t WIDTH = Vector::size();
constexpr float INFINITE = std::numeric_limits<float>::infinity();
constexpr float LOG2_E = 1.4426950408889634f;

inline Vector load(const float* row) { return Vector::loadu(row); }
inline Vector load(const float* row, int64_t count) { return Vector::loadu(row, count); }
inline void store(float* row, Vector x) { x.store(row); }

#ifdef CPU_CAPABILITY_AVX512
inline Vector load(const BFloat16* row) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
inline Vector load(const Half* row) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row))); }
#else
inline Vector load(const BFloat16* row) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
inline Vector load(const Half* row) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row))); }
#endif

#ifdef CPU_CAPABILITY_AVX512
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
#endif

// Two vectors, one behind the other.
inline void store(float* row, Vector x, Vector y) { store(row, x), store(row + WIDTH, y); }
#ifdef CPU_CAPABILITY_AVX512
inline void store(BFloat16* row, Vector x, Vector y) {
#ifdef __AVX512BF16__
  _mm512_storeu_si512(row, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(y, x)));
#else
  store(row, x), store(row + WIDTH, y);
#endif
}
#endif

inline float largest(Vector x) {
  return at::vec::vec_reduce_all<float>([](const Vector& a, const Vector& b) { return at::vec::maximum(a, b); }, x);
}

inline float sum(Vector x) {
  return at::vec::vec_reduce_all<float>([](const Vector& a, const Vector& b) { return a + b; }, x);
}

// Combines the lanes of each of some vectors: those of the i-th become lane i. All vectors' lanes are combined in one order.
template <typename Combine>
inline Vector across(Vector (&vectors)[WIDTH], const Combine& combine) {
  for (int64_t count = WIDTH; count > 1; count /= 2) {
    for (int64_t i = 0; i < count; i += 2) {
      const auto [even, odd] = at::vec::deinterleave2(vectors[i], vectors[i + 1]);
      vectors[i / 2] = combine(even, odd);
    }
  }
  return vectors[0];
}

// The larger and the smaller of x and a bound. Where x is not a number, it stays so.
inline Vector at_least(Vector bound, Vector x) {
#ifdef CPU_CAPABILITY_AVX512
  return _mm512_max_ps(bound, x);
#else
  return _mm256_max_ps(bound, x);
#endif
}

inline Vector at_most(Vector bound, Vector x) {
#ifdef CPU_CAPABILITY_AVX512
  return _mm512_min_ps(bound, x);
#else
  return _mm256_min_ps(bound, x);
#endif
}

// 1 / x for 1 <= x < 2^126, to the last bit or two. Infinity would become NaN.
inline Vector reciprocal(Vector x) {
#ifdef CPU_CAPABILITY_AVX512
  const Vector near(_mm512_rcp14_ps(x));  // to 2^-14; a step of Newton's doubles the digits
  return at::vec::fmadd(near, at::vec::fnmadd(x, near, Vector(1.0f)), near);
#else
  return Vector(1.0f) / x;
#endif
}

// 2^(factor x) for factor x <= 0 (-inf too), and 0 where factor x rounds to less than -125. The polynomial of 2^f for |f| <= 1/2 has the
// least relative error that DEGREE allows: 7.5e-8 with 5 and 7.5e-5 with 3, where bfloat16 rounds to 2e-3.
//
// A mask keeps what float32 cannot hold from being scaled: that takes hundreds of cycles on Intel's processors, and each key
// that is not seen is such a number. A NaN stays one: it is not below the least.
template <int DEGREE>
inline Vector power_of_two(Vector x, Vector factor) {
  static_assert(DEGREE == 3 || DEGREE == 5);
  const Vector least(-125.0f), whole = (x * factor).round(), f = at::vec::fmsub(x, factor, whole);
  Vector series;
  if constexpr (DEGREE == 3) {
    series = at::vec::fmadd(Vector(0.05517167f), f, Vector(0.24261113f));
    series = at::vec::fmadd(series, f, Vector(0.69326099f));
    series = at::vec::fmadd(series, f, Vector(0.99992807f));
  } else {
    series = at::vec::fmadd(Vector(0.00132765f), f, Vector(0.00967554f));
    series = at::vec::fmadd(series, f, Vector(0.05550713f));
    series = at::vec::fmadd(series, f, Vector(0.24022120f));
    series = at::vec::fmadd(series, f, Vector(0.69314697f));
    series = at::vec::fmadd(series, f, Vector(1.00000007f));
  }
#ifdef CPU_CAPABILITY_AVX512
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(whole, least, _CMP_NLT_UQ), series, whole);
#else
  const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(whole), 23);  // 0 for NaN
  const Vector power = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(series), exponent));
  return _mm256_and_ps(power, _mm256_cmp_ps(whole, least, _CMP_NLT_UQ));
#endif
}

// The degree of 2^x that suffices for numbers of a format.
template <typename Number>
constexpr int POWER_DEGREE = sizeof(Number) == 2 ? 3 : 5;

}  // namespace selvage

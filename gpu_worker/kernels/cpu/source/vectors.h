// Vectors of float32: reading and writing rows, and functions of numbers.
#pragma once
#include <cstdint>
#include <limits>

#include "instructions.h"

namespace selvage {

constexpr float INFINITE = std::numeric_limits<float>::infinity();
constexpr float LOG2_E = 1.4426950408889634f;

inline Vector load(const float* row) { return Vector::loadu(row); }
inline Vector load(const float* row, int64_t count) { return Vector::loadu(row, count); }
inline void store(float* row, Vector x) { x.store(row); }

// Two vectors, one behind the other.
inline void store(float* row, Vector x, Vector y) { store(row, x), store(row + WIDTH, y); }

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
  return scaled(series, whole, least);
}

// The degree of 2^x that suffices for numbers of a format.
template <typename Number>
constexpr int POWER_DEGREE = sizeof(Number) == 2 ? 3 : 5;

}  // namespace selvage

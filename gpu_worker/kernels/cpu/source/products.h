// Small matrix products by PyTorch's brgemm, which oneDNN compiles for the processor: C = A B, or C += A B.
#pragma once
#include <ATen/native/CPUBlas.h>
#include <c10/util/BFloat16.h>
#include <cstdint>

#include "matrix_units.h"
#include "vectors.h"

namespace selvage {

inline int64_t round_up(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

// Numbers of a product's right side that lie together: brgemm wants bfloat16 in pairs along the depth.
template <typename Number>
constexpr int64_t TOGETHER = 4 / sizeof(Number);
// Keys are filled with zeros to a multiple of this, as matrix units want the depth of a product, and weights two vectors.
template <typename Number>
constexpr int64_t DEPTH_STEP = sizeof(Number) == 2 ? 32 : 2 * WIDTH;

// Scores have a multiple of so many rows, so that there are few kinds of them to compile.
constexpr int64_t ROW_STEP = 4;

// A [rows, depth] x B [depth, columns] -> C [rows, columns] float32; strides in numbers.
template <typename Number>
inline void multiply(int64_t rows, int64_t columns, int64_t depth, const Number* a, int64_t a_stride, const Number* b,
                     int64_t b_stride, float* c, int64_t c_stride, bool add) {
  at::native::cpublas::brgemm(rows, columns, depth, a_stride, b_stride, c_stride, add, a, b, c, sizeof(Number) < 4);
}

// Gives the matrix units of the thread back, ours and brgemm's, where a parallel region ends, also by an exception.
template <typename Number>
struct ProductsOfRegion {
  ~ProductsOfRegion() {
    end_tiles();
    at::native::cpublas::brgemm_release(sizeof(Number) < 4);
  }
};

}  // namespace selvage

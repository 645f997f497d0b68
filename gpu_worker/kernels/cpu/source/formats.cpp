// Which products this processor has, asked before anything depends on them.
#include <torch/library.h>

#include <exception>
#include <string>
#include <vector>

#include "block_products.h"
#include "products.h"

namespace selvage {
namespace {

constexpr int64_t ROWS = 4, COLUMNS = 32, DEPTHS[] = {32, 48};  // a depth that matrix units like, and one with a rest

int64_t left_number(int64_t row, int64_t depth) { return (5 * row + 3 * depth) % 11; }
int64_t right_number(int64_t depth, int64_t column) { return (7 * depth + column) % 13 - 6; }

// Whether small products of this format run here and are right. oneDNN throws for a format that the processor lacks, and
// inside of a parallel region that would end the process; so this asks in one thread. `Left`, `Right` and `Sum` hold
// whole numbers of this size exactly.
template <typename Left, typename Right, typename Sum, typename Multiply>
bool is_right(const Multiply& product_of) {
  constexpr int64_t T = 4 / sizeof(Right);
  for (const int64_t depth : DEPTHS) {
    std::vector<Left> left(ROWS * depth);
    std::vector<Right> right(depth * COLUMNS);
    std::vector<Sum> product(ROWS * COLUMNS);
    for (int64_t row = 0; row < ROWS; row++) {
      for (int64_t k = 0; k < depth; k++) left[row * depth + k] = static_cast<Left>(left_number(row, k));
    }
    for (int64_t k = 0; k < depth; k++) {
      for (int64_t i = 0; i < COLUMNS; i++) right[(k / T * COLUMNS + i) * T + k % T] = static_cast<Right>(right_number(k, i));
    }
    try {
      product_of(depth, left.data(), right.data(), product.data());
      at::native::cpublas::brgemm_release(true);
    } catch (const std::exception&) {
      return false;
    }
    for (int64_t row = 0; row < ROWS; row++) {
      for (int64_t i = 0; i < COLUMNS; i++) {
        int64_t expected = 0;
        for (int64_t k = 0; k < depth; k++) expected += left_number(row, k) * right_number(k, i);
        if (product[row * COLUMNS + i] != static_cast<Sum>(expected)) return false;
      }
    }
  }
  return true;
}

template <typename Number>
bool has_product() {
  return is_right<Number, Number, float>([](int64_t depth, const Number* left, const Number* right, float* product) {
    multiply(ROWS, COLUMNS, depth, left, depth, right, COLUMNS, product, COLUMNS, false);
  });
}

bool has_int8_product() {
  return is_right<uint8_t, int8_t, int32_t>([](int64_t depth, const uint8_t* left, const int8_t* right, int32_t* product) {
    multiply(ROWS, COLUMNS, depth, left, depth, right, COLUMNS, product, COLUMNS, false);
  });
}

std::vector<std::string> formats() {
  std::vector<std::string> names;
  if (has_product<float>()) names.emplace_back("float32");
#ifdef CPU_CAPABILITY_AVX512
  if (has_product<c10::BFloat16>()) names.emplace_back("bfloat16");
#endif
  if (by_vectors<uint8_t>() || has_int8_product()) names.emplace_back("int8");
  return names;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(selvage, library) { library.def("formats() -> str[]", formats); }

}  // namespace selvage

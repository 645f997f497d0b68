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
// inside of a parallel region that would end the process; so this asks in one thread. `Number` holds whole numbers of this
// size exactly.
template <typename Number>
bool has_product() {
  constexpr int64_t T = TOGETHER<Number>;
  for (const int64_t depth : DEPTHS) {
    std::vector<Number> left(ROWS * depth);
    std::vector<Number> right(depth * COLUMNS);
    std::vector<float> product(ROWS * COLUMNS);
    for (int64_t row = 0; row < ROWS; row++) {
      for (int64_t k = 0; k < depth; k++) left[row * depth + k] = static_cast<Number>(left_number(row, k));
    }
    for (int64_t k = 0; k < depth; k++) {
      for (int64_t i = 0; i < COLUMNS; i++) right[(k / T * COLUMNS + i) * T + k % T] = static_cast<Number>(right_number(k, i));
    }
    try {
      multiply(ROWS, COLUMNS, depth, left.data(), depth, right.data(), COLUMNS, product.data(), COLUMNS, false);
      at::native::cpublas::brgemm_release(true);
    } catch (const std::exception&) {
      return false;
    }
    for (int64_t row = 0; row < ROWS; row++) {
      for (int64_t i = 0; i < COLUMNS; i++) {
        int64_t expected = 0;
        for (int64_t k = 0; k < depth; k++) expected += left_number(row, k) * right_number(k, i);
        if (product[row * COLUMNS + i] != static_cast<float>(expected)) return false;
      }
    }
  }
  return true;
}

std::vector<std::string> formats() {
  std::vector<std::string> names;
  if (by_vectors<float>() || has_product<float>()) names.emplace_back("float32");
#ifdef CPU_CAPABILITY_AVX512
  if (has_product<c10::BFloat16>()) names.emplace_back("bfloat16");
#endif
  return names;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(selvage, library) { library.def("formats() -> str[]", formats); }

}  // namespace selvage

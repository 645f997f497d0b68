// Which products this processor has, asked before anything depends on them.
#include <torch/library.h>

#include <exception>
#include <string>
#include <vector>

#include "products.h"

namespace selvage {
namespace {

// Whether a small product of this format runs here and is right. oneDNN throws for a format that the processor lacks, and
// inside of a parallel region that would end the process; so this asks in one thread.
template <typename Number>
bool has_product() {
  constexpr int64_t ROWS = 4, COLUMNS = 32, DEPTH = 32;
  std::vector<Number> left(ROWS * DEPTH, Number(2.0f)), right(DEPTH * COLUMNS, Number(3.0f));
  std::vector<float> product(ROWS * COLUMNS, 1.0f);
  try {
    multiply(ROWS, COLUMNS, DEPTH, left.data(), DEPTH, right.data(), COLUMNS, product.data(), COLUMNS, true);
    release_products<Number>();
  } catch (const std::exception&) {
    return false;
  }
  for (const float number : product) {
    if (number != 2.0f * 3.0f * DEPTH + 1.0f) return false;
  }
  return true;
}

bool has_int8_product() {
  constexpr int64_t ROWS = 4, COLUMNS = 32, DEPTH = 32;
  std::vector<uint8_t> left(ROWS * DEPTH, 255);
  std::vector<int8_t> right(DEPTH * COLUMNS, -127);
  std::vector<int32_t> product(ROWS * COLUMNS, 1);
  try {
    multiply(ROWS, COLUMNS, DEPTH, left.data(), DEPTH, right.data(), COLUMNS, product.data(), COLUMNS);
    at::native::cpublas::brgemm_release(true);
  } catch (const std::exception&) {
    return false;
  }
  for (const int32_t number : product) {
    if (number != -127 * 255 * DEPTH) return false;  // also where pairs of products saturate at 16 bits
  }
  return true;
}

std::vector<std::string> formats() {
  std::vector<std::string> names;
  if (has_product<float>()) names.emplace_back("float32");
#ifdef CPU_CAPABILITY_AVX512
  if (has_product<c10::BFloat16>()) names.emplace_back("bfloat16");
#endif
  if (has_int8_product()) names.emplace_back("int8");
  return names;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(selvage, library) { library.def("formats() -> str[]", formats); }

}  // namespace selvage

// Products of rows with blocks of weights that lie as `LayerShape` says.
//
// brgemm multiplies one block after the other, and waits for the memory of each when it begins. The vectors here ask for
// the next block while they multiply one. Sums run in brgemm's order; it serves where vectors lack a format, and where
// matrix units (AMX) are faster than vectors.
#pragma once
#include <ATen/cpu/Utils.h>

#include <cstring>

#include "products.h"
#include "scratch.h"

namespace selvage {

#ifdef CPU_CAPABILITY_AVX512

// Vectors of sums. A product has 32 bits of either side: a float32, two bfloat16 or four integers.
template <typename Left>
struct Lanes {};

template <>
struct Lanes<float> {
  using Sums = __m512;
  static Sums add(Sums sums, __m512i a, __m512i b) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), sums);
  }
};

#ifdef __AVX512BF16__
template <>
struct Lanes<BFloat16> {
  using Sums = __m512;
  static Sums add(Sums sums, __m512i a, __m512i b) {
    return _mm512_dpbf16_ps(sums, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
};
#endif

template <>
struct Lanes<uint8_t> {
  using Sums = __m512i;
  static Sums add(Sums sums, __m512i a, __m512i b) {
#ifdef __AVX512VNNI__
    return _mm512_dpbusd_epi32(sums, a, b);
#else  // by its name: Cascade Lake and Ice Lake have VNNI, and load the library for processors without AVX512_BF16
    asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(a), "v"(b));
    return sums;
#endif
  }
};

template <typename Left>
concept HasLanes = requires { typename Lanes<Left>::Sums; };

constexpr int64_t LANES = 16;      // items of 32 bits in a vector, which is a line of memory too
constexpr int64_t MOST_SUMS = 24;  // vectors of sums that registers hold beside the weights
constexpr int64_t GROUP = 8;       // items of a row between two looks ahead

// Lines of memory that will be read next: so many are asked for with every group of items.
struct Ahead {
  const int32_t* next;
  int64_t lines;
};

// A [ROWS, items] x B [items, 16 VECTORS] -> C [ROWS, 16 VECTORS], in items of 32 bits.
template <typename Left, int ROWS, int VECTORS>
void multiply_tile(const int32_t* a, int64_t a_stride, const int32_t* b, int64_t items, int32_t* c, Ahead ahead) {
  using Sums = typename Lanes<Left>::Sums;
  Sums sums[ROWS][VECTORS];
#pragma GCC unroll 12
  for (int row = 0; row < ROWS; row++) {
#pragma GCC unroll 4
    for (int i = 0; i < VECTORS; i++) sums[row][i] = Sums{};
  }
  for (int64_t group = 0; group < items; group += GROUP) {
    for (int64_t i = 0; i < ahead.lines; i++, ahead.next += LANES) _mm_prefetch(ahead.next, _MM_HINT_T1);
    for (int64_t item = group; item < group + GROUP; item++, b += LANES * VECTORS) {
      __m512i right[VECTORS];
      for (int i = 0; i < VECTORS; i++) right[i] = _mm512_loadu_si512(b + LANES * i);
      for (int row = 0; row < ROWS; row++) {
        int32_t number;
        std::memcpy(&number, a + row * a_stride + item, sizeof(number));
        const __m512i left = _mm512_set1_epi32(number);
        for (int i = 0; i < VECTORS; i++) sums[row][i] = Lanes<Left>::add(sums[row][i], left, right[i]);
      }
    }
  }
#pragma GCC unroll 12
  for (int row = 0; row < ROWS; row++) {
#pragma GCC unroll 4
    for (int i = 0; i < VECTORS; i++, c += LANES) _mm512_storeu_si512(c, reinterpret_cast<__m512i>(sums[row][i]));
  }
}

// The same for `rows` rows, of at most ROWS.
template <typename Left, int VECTORS, int ROWS = MOST_SUMS / VECTORS>
void multiply_rows(int64_t rows, const int32_t* a, int64_t a_stride, const int32_t* b, int64_t items, int32_t* c, Ahead ahead) {
  if constexpr (ROWS > 0) {
    if (rows == ROWS) return multiply_tile<Left, ROWS, VECTORS>(a, a_stride, b, items, c, ahead);
    multiply_rows<Left, VECTORS, ROWS - 1>(rows, a, a_stride, b, items, c, ahead);
  }
}

// See `multiply_blocks`; for blocks of 16 VECTORS outputs.
template <typename Left, typename Sum, int VECTORS, typename Right, typename Use>
void multiply_by_vectors(const Left* x, int64_t stride, int64_t rows, const Right* weight, int64_t inputs, int64_t first,
                         int64_t last, const void* after, const Use& use) {
  constexpr int64_t BLOCK = LANES * VECTORS, MOST = MOST_SUMS / VECTORS, T = TOGETHER<Right>;
  const int64_t tiles = (rows + MOST - 1) / MOST, items = inputs / T, groups = items / GROUP;
  if (tiles == 0) return;
  const int64_t lines = (items * VECTORS + tiles * groups - 1) / (tiles * groups);
  const auto* left = reinterpret_cast<const int32_t*>(x);
  const auto* right = reinterpret_cast<const int32_t*>(weight) + first * BLOCK * items;
  alignas(64) Sum sums[MOST * BLOCK];
  for (int64_t part = first; part < last; part++, right += BLOCK * items) {
    const auto* next = part + 1 < last ? right + BLOCK * items : static_cast<const int32_t*>(after);
    Ahead ahead{next, next == nullptr ? 0 : lines};
    for (int64_t tile = 0; tile < tiles; tile++, ahead.next += LANES * lines * groups) {
      const int64_t row = rows * tile / tiles, count = rows * (tile + 1) / tiles - row;
      auto* products = reinterpret_cast<int32_t*>(sums);
      multiply_rows<Left, VECTORS>(count, left + row * stride / T, stride / T, right, items, products, ahead);
      for (int64_t i = 0; i < count; i++) use(row + i, part * BLOCK, sums + i * BLOCK);
    }
  }
}

#endif

// Whether the processor has these instructions, by PyTorch's name of them.
inline bool has_instructions(const char* name) {
  const auto capabilities = at::cpu::get_cpu_capabilities();
  const auto found = capabilities.find(name);
  return found != capabilities.end() && found->second.toBool();
}

// Whether brgemm multiplies this format by matrix units here.
template <typename Left>
bool has_matrix_units() {
  static const bool found = sizeof(Left) < 4 && has_instructions(sizeof(Left) == 2 ? "amx_bf16" : "amx_int8");
  return found;
}

// Whether products of this format run by vectors here.
template <typename Number>
bool by_vectors() {
#ifdef CPU_CAPABILITY_AVX512
  if constexpr (HasLanes<Number>) {
    static const bool has_them = sizeof(Number) > 1 || has_instructions("avx512_vnni");
    return has_them && !has_matrix_units<Number>();
  }
#endif
  return false;
}

// Multiplies `rows` rows x, `stride` numbers apart, with blocks `first` to `last` - 1 of weights, of `block` outputs each.
// Calls `use(row, column, sums)` with the sums of each row and block, whose first output is `column`. A row's sums run in
// one order, whatever the number of rows. `after`: weights that are read next, or none; where vectors multiply,
// they are asked for with the last block.
template <typename Sum, typename Left, typename Right, typename Use>
void multiply_blocks(const Left* x, int64_t stride, int64_t rows, const Right* weight, int64_t inputs, int64_t block,
                     int64_t first, int64_t last, const void* after, Scratch& scratch, const Use& use) {
#ifdef CPU_CAPABILITY_AVX512
  if constexpr (HasLanes<Left>) {
    if (by_vectors<Left>()) {
      if (block == 4 * LANES) return multiply_by_vectors<Left, Sum, 4>(x, stride, rows, weight, inputs, first, last, after, use);
      if (block == 2 * LANES) return multiply_by_vectors<Left, Sum, 2>(x, stride, rows, weight, inputs, first, last, after, use);
    }
  }
#endif
  Sum* sums = scratch.take<Sum>(rows * block);
  for (int64_t part = first; part < last; part++) {
    multiply(rows, block, inputs, x, stride, weight + part * block * inputs, block, sums, block, false);
    for (int64_t row = 0; row < rows; row++) use(row, part * block, sums + row * block);
  }
}

}  // namespace selvage

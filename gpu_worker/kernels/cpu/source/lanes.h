// Vectors of sums, and the instructions that add products to them. A product has 32 bits of either side: a float32, two
// bfloat16 or four integers of 8 bits.
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "vectors.h"

// A compiler that knows AVX-VNNI has its header; its assembler is taken to know it too.
#if !defined(CPU_CAPABILITY_AVX512) && __has_include(<avxvnniintrin.h>)
#define HAS_AVX_VNNI
#endif

namespace selvage {

constexpr int64_t LINE_ITEMS = 16;  // items of 32 bits in a line of memory

#ifdef CPU_CAPABILITY_AVX512

using Items = __m512i;
constexpr int64_t LANES = 16;        // items of a vector
constexpr int64_t MOST_SUMS = 24;    // vectors of sums that registers hold beside the weights
constexpr int64_t TILE_VECTORS = 4;  // most vectors of a row of them
constexpr char VNNI[] = "avx512_vnni";  // PyTorch's name of instructions that multiply bytes

inline Items load_items(const int32_t* from) { return _mm512_loadu_si512(from); }
inline Items everywhere(int32_t item) { return _mm512_set1_epi32(item); }
inline void store_items(int32_t* to, Items items) { _mm512_storeu_si512(to, items); }
inline void store_items(int32_t* to, __m512 items) { _mm512_storeu_ps(to, items); }

#else

using Items = __m256i;
constexpr int64_t LANES = 8;
constexpr int64_t MOST_SUMS = 12;
constexpr int64_t TILE_VECTORS = 2;
constexpr char VNNI[] = "avx_vnni";

inline Items load_items(const int32_t* from) { return _mm256_loadu_si256(reinterpret_cast<const Items*>(from)); }
inline Items everywhere(int32_t item) { return _mm256_set1_epi32(item); }
inline void store_items(int32_t* to, Items items) { _mm256_storeu_si256(reinterpret_cast<Items*>(to), items); }

#endif

// Bytes without VNNI: products of two neighbours are added in 16 bits, which those of `int8.py` fit into, and then in 32.
struct PairLanes {
  using Sums = Items;
  static Sums add(Sums sums, Items a, Items b) {
#ifdef CPU_CAPABILITY_AVX512
    return _mm512_add_epi32(sums, _mm512_madd_epi16(_mm512_maddubs_epi16(a, b), _mm512_set1_epi16(1)));
#else
    return _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)));
#endif
  }
};

// The lanes for numbers of a format; without `Sums` where a processor of this kind has none.
template <typename Left>
struct Lanes {};

#ifdef CPU_CAPABILITY_AVX512

template <>
struct Lanes<float> {
  using Sums = __m512;
  static Sums add(Sums sums, Items a, Items b) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), sums);
  }
};

#ifdef __AVX512BF16__
template <>
struct Lanes<BFloat16> {
  using Sums = __m512;
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

#elif defined(HAS_AVX_VNNI)

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

template <typename Left>
concept HasLanes = requires { typename Lanes<Left>::Sums; };

// Memory that will be read next: `lines` of it are asked for at each look.
struct Ahead {
  const int32_t* next = nullptr;
  int64_t lines = 0;

  // Asks for `items` items in `looks` looks; for none without `next`.
  static Ahead of(const int32_t* next, int64_t items, int64_t looks) {
    return {next, next == nullptr ? 0 : (items / LINE_ITEMS + looks - 1) / looks};
  }
  void ask() {
    for (int64_t i = 0; i < lines; i++, next += LINE_ITEMS) _mm_prefetch(next, _MM_HINT_T1);
  }
  void skip(int64_t looks) { next += LINE_ITEMS * lines * looks; }
};

}  // namespace selvage

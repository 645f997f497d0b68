// NEON, which every ARM of 64 bits has: see `instructions.h`.
#pragma once
#include <arm_neon.h>

namespace selvage {

inline void spin() { asm volatile("yield" ::: "memory"); }

inline Vector load(const BFloat16* row) {
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(reinterpret_cast<const uint16_t*>(row)), 16));
}
inline Vector load(const Half* row) { return vcvt_f32_f16(vld1_f16(reinterpret_cast<const float16_t*>(row))); }

inline Vector at_least(Vector bound, Vector x) { return vmaxq_f32(bound, x); }
inline Vector at_most(Vector bound, Vector x) { return vminq_f32(bound, x); }

inline Vector reciprocal(Vector x) { return Vector(1.0f) / x; }

inline Vector scaled(Vector x, Vector power, Vector least) {
  const int32x4_t exponent = vshlq_n_s32(vcvtnq_s32_f32(power), 23);  // 0 for NaN
  const int32x4_t product = vaddq_s32(vreinterpretq_s32_f32(x), exponent);
  return vreinterpretq_f32_s32(vbicq_s32(product, vreinterpretq_s32_u32(vcltq_f32(power, least))));
}

inline void store_bytes(uint8_t* to, Integers numbers) {
  const uint16x4_t words = vqmovun_s32(numbers);
  vst1_lane_u32(reinterpret_cast<uint32_t*>(to), vreinterpret_u32_u8(vqmovn_u16(vcombine_u16(words, words))), 0);
}

using Items = int32x4_t;
using Floats = float32x4_t;
constexpr int64_t MOST_SUMS = 24;
constexpr int64_t TILE_VECTORS = 4;

inline Items load_items(const int32_t* from) { return vld1q_s32(from); }
inline Items everywhere(int32_t item) { return vdupq_n_s32(item); }
inline void store_items(int32_t* to, Items items) { vst1q_s32(to, items); }
inline void store_items(int32_t* to, Floats items) { vst1q_f32(reinterpret_cast<float*>(to), items); }

template <>
struct Lanes<float> {
  using Sums = Floats;
  static Sums add(Sums sums, Items a, Items b) { return vfmaq_f32(sums, vreinterpretq_f32_s32(a), vreinterpretq_f32_s32(b)); }
};

// Bytes: products in 32 bits, those of an item one behind the other. Many processors could do it in one instruction (I8MM).
template <>
struct Lanes<uint8_t> {
  using Sums = Items;
  static Sums add(Sums sums, Items a, Items b) {
    const uint8x16_t left = vreinterpretq_u8_s32(a);
    const int8x16_t right = vreinterpretq_s8_s32(b);
    const auto products = [](uint8x8_t unsigned_bytes, int8x8_t bytes) {  // of two items: the sum of each
      const int16x8_t x = vreinterpretq_s16_u16(vmovl_u8(unsigned_bytes)), y = vmovl_s8(bytes);
      return vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y));
    };
    const int32x4_t low = products(vget_low_u8(left), vget_low_s8(right));
    const int32x4_t high = products(vget_high_u8(left), vget_high_s8(right));
    return vaddq_s32(sums, vpaddq_s32(low, high));
  }
};

}  // namespace selvage

// What the sets of instructions do each in their own way. Vectors are PyTorch's (`at::vec`); each set has a file that
// defines the following, for 16 numbers of float32 with AVX-512, 8 with AVX2, 4 with NEON (ARM):
//
//   load(from)                 WIDTH numbers of bfloat16 or float16 as float32
//   at_least, at_most          the larger and the smaller of a bound and x. Where x is not a number, it stays so
//   reciprocal(x)              1 / x for 1 <= x < 2^126, to the last bit or two. Infinity may become NaN
//   scaled(x, power, least)    x 2^power, and 0 where `power` is less than `least`, which is at least -125. A NaN stays one
//   store_bytes(to, numbers)   integers from 0 to 255 as bytes
//   Items, Floats              a vector of items of 32 bits, and one of float32, as products read and sum them
//   load_items, everywhere, store_items    read items, fill a vector with one, and write sums
//   Lanes<Left>                adds products of a format to sums; without `Sums` where the set has none
//   VNNI, PairLanes            on x86 only: PyTorch's name of what Lanes<uint8_t> needs, and what does without it
//   spin()                     tells the processor that this thread waits for another
//   MOST_SUMS, TILE_VECTORS    vectors of sums that registers hold beside the weights, and most vectors of a row of them
#pragma once
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <cstdint>

namespace selvage {

using c10::BFloat16;
using c10::Half;
using Vector = at::vec::Vectorized<float>;
using Integers = at::vec::Vectorized<int32_t>;
constexpr int64_t WIDTH = Vector::size();
constexpr int64_t LANES = WIDTH;  // items of a vector

// A product has 32 bits of either side: a float32, two bfloat16 or four integers of 8 bits.
template <typename Left>
struct Lanes {};

}  // namespace selvage

#if defined(CPU_CAPABILITY_AVX512)
#include "avx512.h"
#elif defined(CPU_CAPABILITY_AVX2)
#include "avx2.h"
#else
#include "neon.h"
#endif

namespace selvage {

template <typename Left>
concept HasLanes = requires { typename Lanes<Left>::Sums; };

}  // namespace selvage

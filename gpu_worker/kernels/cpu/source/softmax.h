// Softmax of rows of scores, in blocks of keys: each block's weights, and what the sums so far are to be multiplied with.
#pragma once
#include <algorithm>
#include <cstdint>

#include "vectors.h"
#include "visibility.h"

namespace selvage {

constexpr int64_t MOST_WEIGHED = 64;  // rows that are weighed together

// State of a row of queries between blocks of keys.
struct Running {
  float largest, sum;
};

// Turns products into scores in powers of two, where a softcap or a bias makes that more than a factor.
inline void finish_scores(float* scores, Keys seen, const Terms& terms, const float* bias) {
  for (int64_t column = seen.first; column < seen.last; column += WIDTH) {
    const int64_t count = std::min(WIDTH, seen.last - column);
    Vector x = load(scores + column, count) * Vector(terms.scale);
    if (bias != nullptr) x = x + load(bias + column, count);
    if (terms.softcap > 0) x = (x / Vector(terms.softcap)).tanh() * Vector(terms.softcap);
    (x * Vector(LOG2_E)).store(scores + column, count);
  }
}

// The largest of the scores [width] that are `seen`; all others become -inf. A NaN may be lost: its power is NaN again.
inline float largest_seen(float* scores, int64_t width, Keys seen) {
  std::fill(scores, scores + seen.first, -INFINITE);
  std::fill(scores + std::max(seen.first, seen.last), scores + width, -INFINITE);
  // Two of each: an operation need not wait for the one before.
  Vector most[2] = {Vector(-INFINITE), Vector(-INFINITE)};
  for (int64_t column = 0; column < width; column += 2 * WIDTH) {
    for (int64_t part = 0; part < 2; part++) most[part] = at_least(most[part], load(scores + column + part * WIDTH));
  }
  return largest(at_least(most[0], most[1]));
}

// Softmax's numerators of one row, 2^(factor x - top), and their sum.
template <typename Number>
float powers_of_row(const float* scores, Number* weights, int64_t width, float factor, float top) {
  const Vector factors(factor), tops(top), zero(0.0f);
  Vector sums[2] = {zero, zero};
  for (int64_t column = 0; column < width; column += 2 * WIDTH) {
    for (int64_t part = 0; part < 2; part++) {
      const int64_t place = column + part * WIDTH;
      // The difference is rounded once, `top` twice: of huge scores it may be above 0.
      const Vector power = power_of_two<POWER_DEGREE<Number>>(at_most(zero, at::vec::fmsub(load(scores + place), factors, tops)));
      sums[part] = sums[part] + power;
      store(weights + place, power);
    }
  }
  return sum(sums[0] + sums[1]);
}

// Weighs the keys of `rows` rows by their scores [rows, stride], of which `width` count: softmax's numerators, 0 for keys
// that are not `seen` by a row. `factor` turns scores into powers of two. `earlier` [rows] is what the rows' sums so far
// must be multiplied with. Each step takes all rows: the next row need not wait for one row's largest score.
template <typename Number>
void weigh(float* scores, Number* weights, int64_t rows, int64_t stride, int64_t width, const Keys* seen, float factor,
           Running* running, float* earlier) {
  float tops[MOST_WEIGHED];
  for (int64_t row = 0; row < rows; row++) tops[row] = largest_seen(scores + row * stride, width, seen[row]);
  for (int64_t row = 0; row < rows; row++) {
    const float before = running[row].largest;
    running[row].largest = std::max(tops[row] * factor, before);
    // Where nothing was seen so far, every score is -inf.
    tops[row] = running[row].largest == -INFINITE ? 0.0f : running[row].largest;
    earlier[row] = before - tops[row];
  }
  for (int64_t row = 0; row < rows; row += WIDTH) {
    const int64_t count = std::min(WIDTH, rows - row);
    const Vector below = load(earlier + row, count);
    Vector::blendv(power_of_two<5>(below), Vector(1.0f), below == Vector(0.0f)).store(earlier + row, count);
  }
  for (int64_t row = 0; row < rows; row++) {
    const float sum = powers_of_row(scores + row * stride, weights + row * stride, width, factor, tops[row]);
    running[row].sum = running[row].sum * earlier[row] + sum;
  }
}

}  // namespace selvage

// Which keys a token sees, and softmax of rows of scores, in blocks of keys: each block's weights, and what the sums so far are
// to be multiplied with.
#pragma once
#include <algorithm>
#include <cstdint>

#include "vectors.h"

namespace selvage {

// Keys `first` to `last` - 1 of a sequence.
struct Keys {
  int64_t first, last;
  bool empty() const { return first >= last; }
};

// Rules of visibility; 0 stands for no window. A window is exclusive: token i sees key j where i - j < window, and where the
// rule is not causal also j - i < window.
struct Visibility {
  bool causal;
  int64_t window;

  // What the token at `position` sees of a sequence's first `count` keys. Both ends grow with the position.
  Keys at(int64_t position, int64_t count) const {
    Keys keys{0, count};
    if (causal) keys.last = std::min(keys.last, position + 1);
    if (window > 0) {
      keys.first = std::max(keys.first, position - window + 1);
      if (!causal) keys.last = std::min(keys.last, position + window);
    }
    return keys;
  }
};

// Rules for the scores of one layer.
struct Terms {
  float scale, softcap;  // no softcap where it is 0
  Visibility visibility;
};

// State of rows of queries between blocks of keys, for whole vectors of rows.
struct Running {
  float *largest, *sum;
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

// Columns with keys that a row sees, in whole steps of two vectors.
inline Keys columns_of(Keys seen) {
  constexpr int64_t STEP = 2 * WIDTH;
  return seen.empty() ? Keys{0, 0} : Keys{seen.first / STEP * STEP, (seen.last + STEP - 1) / STEP * STEP};
}

// Scores of `columns` that are not `seen` become -inf.
inline void hide(float* scores, Keys seen, Keys columns) {
  const auto fill = [&](int64_t first, int64_t last) {
    for (; first < last; first += WIDTH) Vector(-INFINITE).store(scores + first, std::min(WIDTH, last - first));
  };
  fill(columns.first, std::min(seen.first, columns.last));
  fill(seen.last, columns.last);
}

// The largest score of a row, lane by lane. A NaN may be lost: its power is NaN again.
inline Vector largest_of_row(const float* scores, Keys columns) {
  // Two of each: an operation need not wait for the one before.
  Vector most[2] = {Vector(-INFINITE), Vector(-INFINITE)};
  for (int64_t column = columns.first; column < columns.last; column += 2 * WIDTH) {
    for (int64_t part = 0; part < 2; part++) most[part] = at_least(most[part], load(scores + column + part * WIDTH));
  }
  return at_least(most[0], most[1]);
}

// Softmax's numerators of one row, 2^(factor (x - top)), and their sum, lane by lane.
template <typename Number>
Vector powers_of_row(const float* scores, Number* weights, int64_t width, Keys columns, Vector factor, float top) {
  const Vector tops(top), zero(0.0f);
  Vector sums[2] = {zero, zero};
  std::fill(weights, weights + columns.first, Number(0.0f));
  for (int64_t column = columns.first; column < columns.last; column += 2 * WIDTH) {
    Vector powers[2];
    for (int64_t part = 0; part < 2; part++) {
      powers[part] = power_of_two<POWER_DEGREE<Number>>(load(scores + column + part * WIDTH) - tops, factor);
      sums[part] = sums[part] + powers[part];
    }
    store(weights + column, powers[0], powers[1]);
  }
  std::fill(weights + columns.last, weights + width, Number(0.0f));
  return sums[0] + sums[1];
}

// Weighs the keys of `rows` rows by their scores [rows, stride], of which `width` count: softmax's numerators, 0 for keys
// that are not `seen` by a row. `factor` turns scores into powers of two. `earlier` [rows] is what the rows' sums so far
// must be multiplied with. `running` and `earlier` have whole vectors of rows.
//
// Each step takes a vector of rows: a row's lanes are combined beside other rows' lanes, no row waits for another's largest
// score, and what `hide` wrote is in the cache when it is read as parts of vectors.
template <typename Number>
void weigh(float* scores, Number* weights, int64_t rows, int64_t stride, int64_t width, const Keys* seen, float factor,
           Running running, float* earlier) {
  const Vector factors(factor), none(-INFINITE);
  for (int64_t first = 0; first < rows; first += WIDTH) {
    const int64_t last = std::min(first + WIDTH, rows);
    Keys columns[WIDTH];
    for (int64_t row = first; row < last; row++) {
      columns[row - first] = columns_of(seen[row]);
      hide(scores + row * stride, seen[row], columns[row - first]);
    }
    Vector lanes[WIDTH];  // nothing matters behind `last`
    for (int64_t row = first; row < last; row++) lanes[row - first] = largest_of_row(scores + row * stride, columns[row - first]);
    const Vector before = load(running.largest + first);
    const Vector most = at_least(before, across(lanes, at_least));
    store(running.largest + first, most);
    // Where nothing was seen so far, every score is -inf, and sums are 0.
    const Vector top = Vector::blendv(most, Vector(0.0f), most == none);
    const Vector by = Vector::blendv(power_of_two<5>(before - top, factors), Vector(1.0f), (before == most) | (before == none));
    store(earlier + first, by);
    alignas(64) float tops[WIDTH];
    store(tops, top);
    for (int64_t row = first; row < last; row++) {
      lanes[row - first] = powers_of_row(scores + row * stride, weights + row * stride, width, columns[row - first], factors,
                                         tops[row - first]);
    }
    const Vector sums = across(lanes, [](Vector a, Vector b) { return a + b; });
    store(running.sum + first, at::vec::fmadd(load(running.sum + first), by, sums));
  }
}

}  // namespace selvage

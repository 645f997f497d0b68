// Rows behind a model: weighted sums of ranges of rows (pooling), finished rows, and which rows are finite.
//
// What is made of a row or a range depends on it alone, to the last bit.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>

#include "vectors.h"

namespace selvage {
namespace {

constexpr int64_t GRAIN = 1 << 16;  // numbers that one thread reads as soon as others would wake
constexpr float LEAST_LENGTH = 1e-12f;  // that a row is divided by, as in torch.nn.functional.normalize

// `count` numbers of a row, of at most WIDTH; zeros behind them.
inline Vector load_some(const float* row, int64_t count) { return count < WIDTH ? load(row, count) : load(row); }

#ifdef CPU_CAPABILITY_AVX512
inline Vector load_some(const BFloat16* row, int64_t count) {
  if (count >= WIDTH) return load(row);
  BFloat16 some[WIDTH] = {};
  std::copy_n(row, count, some);
  return load(some);
}
#endif

// Calls `work(first, last)` for items that read `numbers` numbers each, in as many threads as pay.
template <typename Work>
void share(int64_t items, int64_t numbers, const Work& work) {
  at::parallel_for(0, items, std::max<int64_t>(1, GRAIN / std::max<int64_t>(numbers, 1)), work);
}

// x - x is 0 where a number is finite, and NaN where it is not.
inline bool all_finite(Vector differences) { return sum(differences) == 0.0f; }

template <typename Number>
struct RowsOf {
  const Number* first;
  int64_t count, width;

  explicit RowsOf(const at::Tensor& rows) : first(rows.const_data_ptr<Number>()), count(rows.size(0)), width(rows.size(1)) {}
  const Number* at(int64_t row) const { return first + row * width; }
};

// Columns `first` to `last` - 1 of a range's weighted sum. The weights are those of the twin, to the last bit.
template <typename Number>
void sum_range(const RowsOf<Number>& rows, const int64_t* range, int64_t growth, double divisor, int64_t first, int64_t last,
               float* to) {
  std::fill(to + first, to + last, 0.0f);
  for (int64_t place = 0; place < range[1]; place++) {
    const Vector weight(static_cast<float>(static_cast<double>(range[2] + growth * place) / divisor));
    const Number* row = rows.at(range[0] + place);
    for (int64_t column = first; column < last; column += WIDTH) {
      const int64_t count = std::min(WIDTH, last - column);
      at::vec::fmadd(load_some(row + column, count), weight, load_some(to + column, count)).store(to + column, count);
    }
  }
}

template <typename Number>
at::Tensor weighted_sums(const RowsOf<Number>& rows, const at::Tensor& ranges, int64_t growth, const at::Tensor& divisors) {
  const int64_t count = ranges.size(0), width = rows.width;
  at::Tensor sums = at::empty({count, width}, divisors.options().dtype(at::kFloat));
  auto* to = sums.mutable_data_ptr<float>();
  const auto* table = ranges.const_data_ptr<int64_t>();
  const auto* divided = divisors.const_data_ptr<double>();
  int64_t total = 0;
  for (int64_t i = 0; i < count; i++) {
    const int64_t start = table[3 * i], length = table[3 * i + 1];
    TORCH_CHECK(start >= 0 && length >= 0 && start + length <= rows.count, "range ", i, " lies outside of the rows");
    total += length;
  }
  // Few ranges are divided by columns.
  const int64_t vectors = (width + WIDTH - 1) / WIDTH;
  const int64_t parts = std::clamp<int64_t>(at::get_num_threads() / std::max<int64_t>(count, 1), 1, std::max<int64_t>(vectors, 1));
  share(count * parts, total * width / std::max<int64_t>(count * parts, 1), [&](int64_t first, int64_t last) {
    for (int64_t task = first; task < last; task++) {
      const int64_t i = task / parts, part = task % parts;
      const int64_t begin = vectors * part / parts * WIDTH, end = std::min(vectors * (part + 1) / parts * WIDTH, width);
      sum_range(rows, table + 3 * i, growth, divided[i], begin, end, to + i * width);
    }
  });
  return sums;
}

// A row's leading numbers as float32, of unit length or as they are. Returns whether all were finite.
template <typename Number>
bool finish_row(const Number* row, int64_t dimensions, bool unit, float* to) {
  Vector squares(0.0f), differences(0.0f);
  for (int64_t column = 0; column < dimensions; column += WIDTH) {
    const int64_t count = std::min(WIDTH, dimensions - column);
    const Vector x = load_some(row + column, count);
    differences = differences + (x - x);
    squares = at::vec::fmadd(x, x, squares);
    if (!unit) x.store(to + column, count);
  }
  if (unit) {
    const Vector length(std::max(std::sqrt(sum(squares)), LEAST_LENGTH));
    for (int64_t column = 0; column < dimensions; column += WIDTH) {
      const int64_t count = std::min(WIDTH, dimensions - column);
      (load_some(row + column, count) / length).store(to + column, count);
    }
  }
  return all_finite(differences);
}

template <typename Number>
std::tuple<at::Tensor, at::Tensor> finish(const RowsOf<Number>& rows, const std::optional<at::Tensor>& index, int64_t dimensions,
                                          bool unit, const at::TensorOptions& options) {
  const int64_t count = index ? index->size(0) : rows.count;
  at::Tensor values = at::empty({count, dimensions}, options.dtype(at::kFloat)), finite = at::empty({count}, options.dtype(at::kBool));
  auto* to = values.mutable_data_ptr<float>();
  auto* found = finite.mutable_data_ptr<bool>();
  const int64_t* chosen = index ? index->const_data_ptr<int64_t>() : nullptr;
  share(count, dimensions, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i++) {
      const int64_t row = chosen == nullptr ? i : chosen[i];
      TORCH_CHECK(row >= 0 && row < rows.count, "row ", row, " is none of ", rows.count);
      found[i] = finish_row(rows.at(row), dimensions, unit, to + i * dimensions);
    }
  });
  return {values, finite};
}

template <typename Number>
at::Tensor finite(const RowsOf<Number>& rows, const at::TensorOptions& options) {
  at::Tensor finite = at::empty({rows.count}, options.dtype(at::kBool));
  auto* found = finite.mutable_data_ptr<bool>();
  share(rows.count, rows.width, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i++) {
      Vector differences(0.0f);
      for (int64_t column = 0; column < rows.width; column += WIDTH) {
        const Vector x = load_some(rows.at(i) + column, rows.width - column);
        differences = differences + (x - x);
      }
      found[i] = all_finite(differences);
    }
  });
  return finite;
}

// Calls `use` with the rows [n, width], by their number format.
template <typename Use>
auto with_rows(const at::Tensor& rows, const Use& use) {
  TORCH_CHECK(rows.dim() == 2 && rows.is_contiguous(), "rows must be [n, width] and lie together");
#ifdef CPU_CAPABILITY_AVX512
  if (rows.scalar_type() == at::kBFloat16) return use(RowsOf<BFloat16>(rows));
#endif
  TORCH_CHECK(rows.scalar_type() == at::kFloat, "rows are float32, or bfloat16 with AVX-512; these are ", rows.scalar_type());
  return use(RowsOf<float>(rows));
}

at::Tensor weighted_sum(const at::Tensor& rows, const at::Tensor& ranges, int64_t growth, const at::Tensor& divisors) {
  TORCH_CHECK(ranges.dim() == 2 && ranges.size(1) == 3 && ranges.scalar_type() == at::kLong && ranges.is_contiguous(),
              "ranges must be [n, 3] int64");
  TORCH_CHECK(divisors.dim() == 1 && divisors.size(0) == ranges.size(0) && divisors.scalar_type() == at::kDouble &&
                  divisors.is_contiguous(),
              "divisors must be [n] float64");
  return with_rows(rows, [&](const auto& of) { return weighted_sums(of, ranges, growth, divisors); });
}

std::tuple<at::Tensor, at::Tensor> finished_rows(const at::Tensor& rows, const std::optional<at::Tensor>& index,
                                                 int64_t dimensions, bool unit) {
  if (index) {
    TORCH_CHECK(index->dim() == 1 && index->scalar_type() == at::kLong && index->is_contiguous(), "index must be [n] int64");
  }
  TORCH_CHECK(dimensions >= 0, "the number of dimensions is negative");
  const int64_t leading = dimensions == 0 ? rows.size(-1) : std::min(dimensions, rows.size(-1));
  return with_rows(rows, [&](const auto& of) { return finish(of, index, leading, unit, rows.options()); });
}

at::Tensor finite_rows(const at::Tensor& rows) {
  return with_rows(rows, [&](const auto& of) { return finite(of, rows.options()); });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(selvage, library) {
  library.def("weighted_sum(Tensor rows, Tensor ranges, int growth, Tensor divisors) -> Tensor");
  library.def("finished_rows(Tensor rows, Tensor? index, int dimensions, bool unit) -> (Tensor, Tensor)");
  library.def("finite_rows(Tensor rows) -> Tensor");
}

TORCH_LIBRARY_IMPL(selvage, CPU, library) {
  library.impl("weighted_sum", weighted_sum);
  library.impl("finished_rows", finished_rows);
  library.impl("finite_rows", finite_rows);
}

}  // namespace selvage

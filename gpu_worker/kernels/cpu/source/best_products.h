// The largest product of each query row with a document's rows.
//
// Query rows lie in blocks, as a layer's weights do, and a few of the document's rows at a time are multiplied with one
// block after the other. Of the products only the largest so far is kept for each query row.
#pragma once
#include <algorithm>
#include <type_traits>

#include "block_products.h"
#include "packing.h"
#include "scratch.h"
#include "vectors.h"

namespace selvage {

constexpr int64_t QUERY_ROWS = 32;     // rows of a block
constexpr int64_t FILLED_WIDTH = 32;   // rows that products read have a multiple of so many numbers,
constexpr int64_t WIDE = 1024;         // and above this of this: brgemm compiles a product for each width, and keeps it
constexpr int64_t DOCUMENT_ROWS = 36;  // multiplied at a time by vectors: three whole tiles, about as large as a block
constexpr int64_t TILES_ROWS = 64;     // the same by matrix units and by brgemm

// Rows of numbers as a tensor holds them; products read them as `Number`.
template <typename Stored, typename Number>
struct StoredRows {
  const Stored* first;
  int64_t rows, width, filled;

  StoredRows(const Stored* first, int64_t rows, int64_t width)
      : first(first), rows(rows), width(width), filled(round_up(width, width > WIDE ? WIDE : FILLED_WIDTH)) {}

  // Whether products can read the rows before `end` where they lie.
  bool can_be_read(int64_t end) const { return std::is_same_v<Stored, Number> && width == filled && end <= rows; }
  const Stored* at(int64_t row) const { return first + row * width; }

  // Writes rows as products read them, with zeros behind each of them.
  void copy(int64_t row, int64_t count, Number* to) const {
    for (const Stored* from = at(row); count > 0; count--, from += width, to += filled) {
      int64_t i = 0;
      if constexpr (std::is_same_v<Stored, Number>) {
        std::copy_n(from, width, to), i = width;
      } else {
        for (; i + WIDTH <= width; i += WIDTH) store(to + i, load(from + i));
      }
      for (; i < width; i++) to[i] = static_cast<Number>(from[i]);
      std::fill(to + width, to + filled, Number(0.0f));
    }
  }
};

// Query rows in blocks, and the largest product of each of them with rows of one document.
template <typename Stored, typename Number>
class BestProducts {
 public:
  const float* maxima = nullptr;  // [rows], once `multiply` has run

  // Begins to collect query rows: `most` of them at most.
  void begin(int64_t most, int64_t filled) {
    rows_ = 0;
    collected_ = collecting_.take<Number>(most * filled);
  }

  void add(const StoredRows<Stored, Number>& queries, int64_t row, int64_t count) {
    queries.copy(row, count, collected_ + rows_ * queries.filled);
    rows_ += count;
  }

  // Packs what was collected.
  void pack(int64_t filled) {
    blocks_ = (rows_ + QUERY_ROWS - 1) / QUERY_ROWS;
    packed_ = packing_.take<Number>(blocks_ * QUERY_ROWS * filled);
    for (int64_t block = 0; block < blocks_; block++) {
      const int64_t first = block * QUERY_ROWS, count = std::min(QUERY_ROWS, rows_ - first);
      pack_keys<Number>(collected_ + first * filled, filled, {count, QUERY_ROWS}, filled, QUERY_ROWS, packed_ + first * filled);
    }
  }

  // Multiplies rows `row` to `row` + `count` - 1 of the documents; those that `mask` does not select do not count. A
  // maximum of no products is -inf, and NaN where a product is.
  void multiply(const StoredRows<Stored, Number>& documents, int64_t row, int64_t count, const bool* mask) {
    float* best = best_.take<float>(blocks_ * QUERY_ROWS);
    std::fill(best, best + blocks_ * QUERY_ROWS, -INFINITE);
    maxima = best;
    const bool by_brgemm = !by_vectors<Number>() && !has_matrix_units<Number>();
    const int64_t step = by_vectors<Number>() ? DOCUMENT_ROWS : TILES_ROWS, filled = documents.filled;
    for (const int64_t end = row + count; row < end; row += step) {
      const int64_t some = std::min(step, end - row);
      // And one for each number of rows: there, rows that follow are multiplied too.
      const int64_t multiplied = by_brgemm ? round_up(some, ROW_STEP) : some;
      const Number* numbers = nullptr;
      const void* next = nullptr;
      if constexpr (std::is_same_v<Stored, Number>) numbers = documents.at(row), next = documents.at(row + some);
      if (!documents.can_be_read(row + multiplied)) {
        Number* copy = rows_of_documents_.take<Number>(step * filled);
        documents.copy(row, some, copy);
        std::fill(copy + some * filled, copy + multiplied * filled, Number(0.0f));
        numbers = copy;
      }
      const auto keep = [&](int64_t place, int64_t column, const float* products) {
        if (place >= some || (mask != nullptr && !mask[row + place])) return;
        for (int64_t i = column; i < column + QUERY_ROWS; i += WIDTH) {
          store(best + i, at::vec::maximum(load(best + i), load(products + i - column)));
        }
      };
      multiply_blocks<float>(numbers, filled, multiplied, packed_, filled, QUERY_ROWS, 0, blocks_, next, products_, keep);
    }
  }

 private:
  Scratch collecting_, packing_, best_, rows_of_documents_, products_;
  Number *collected_ = nullptr, *packed_ = nullptr;
  int64_t rows_ = 0, blocks_ = 0;
};

}  // namespace selvage

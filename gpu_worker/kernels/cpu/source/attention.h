// Softmax attention inside each sequence of a packed batch, in blocks of keys (FlashAttention, arXiv:2205.14135).
//
// Blocks of keys are counted from a sequence's first key, and sums run in the order of the keys. Neither depends on what
// else is in the batch or on where a block of queries begins: a token's result has the same bits alone and beside others.
#pragma once
#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "attention_tiles.h"
#include "matrix_units.h"
#include "packing.h"
#include "products.h"
#include "scratch.h"
#include "softmax.h"
#include "tasks.h"

namespace selvage {

constexpr int64_t KEY_BLOCK = 256;   // keys whose scores are computed together
constexpr int64_t QUERY_BLOCK = 64;  // queries whose scores are computed together: 64 KiB of scores, which a cache holds
constexpr int64_t TILE_QUERIES = TILE_SIDE;  // the same by tiles: 16 KiB, which the first cache holds beside keys and values
constexpr int64_t TASK_ROWS = 256;   // queries, over all heads that share keys, for which keys are packed once
constexpr int64_t TASK_COST = 16;    // queries, and keys, that cost as much as beginning a task
static_assert(KEY_BLOCK % KEY_TILE == 0 && QUERY_BLOCK % TILE_QUERIES == 0 && TILE_QUERIES % WIDTH == 0);

// Rows of one head each, as a tensor [heads, tokens, numbers] holds them.
template <typename Number>
struct Rows {
  Number* first;
  int64_t head_stride, token_stride;
  Number* at(int64_t head, int64_t token) const { return first + head * head_stride + token * token_stride; }
};

// What is added to scaled scores: [1 or sequences, heads, queries, keys].
struct Bias {
  const float* first = nullptr;
  int64_t sequence_stride = 0, head_stride = 0, query_stride = 0;
};

// Key slots that lie together: keys and values at tokens `first` to `first` + `count` - 1.
template <typename Number>
struct Slots {
  Rows<const Number> keys, values;
  int64_t first, count;
};

// A sequence: its queries lie at tokens `query` on, its `keys` keys in `slots`, one behind the other. `past` of them precede its
// first query.
template <typename Number>
struct Sequence {
  int64_t query, queries, keys, past;
  const Slots<Number>* slots;
};

// Queries of one sequence that see the same keys: those of all heads that share a head of keys.
struct Task {
  int64_t sequence, key_head, first_row, rows;
};

// What a thread needs while it attends.
struct AttentionWorkspace {
  Scratch keys, values, queries, scores, weights, means, largest, sums, together;
};

template <typename Number>
class Attention {
 public:
  Rows<const Number> query;
  Rows<Number> output;
  int64_t heads, key_heads, depth, width;
  Terms terms;
  Bias bias;
  std::vector<Sequence<Number>> sequences;

  void run() const {
    const std::vector<Task> tasks = split();
    std::vector<int64_t> costs;
    for (const Task& task : tasks) {
      const Keys seen = keys_of(sequences[task.sequence], task.first_row, task.rows);
      costs.push_back((task.rows + TASK_COST) * (seen.last - seen.first + TASK_COST));
    }
    share_tasks(costs, [&](const auto& next) {
      const ProductsOfRegion<Number> products;
      thread_local AttentionWorkspace workspace;
      if constexpr (std::is_same_v<Number, BFloat16>) {
        if (by_tiles()) begin_tiles();
      }
      for (auto [task, end] = next(); task < end; std::tie(task, end) = next()) {
        for (; task < end; task++) attend(tasks[task], workspace);
      }
    });
  }

 private:
  // Whether both products run by tiles of our own; brgemm has heads whose depth is no whole number of their steps.
  bool by_tiles() const {
    return std::is_same_v<Number, BFloat16> && has_matrix_units<Number>() && depth % TILE_NUMBERS == 0;
  }

  std::vector<Task> split() const {
    const int64_t group = heads / key_heads;
    const int64_t rows = std::max(QUERY_BLOCK, TASK_ROWS / group / QUERY_BLOCK * QUERY_BLOCK);
    std::vector<Task> tasks;
    for (size_t i = 0; i < sequences.size(); i++) {
      for (int64_t first = 0; first < sequences[i].queries; first += rows) {
        for (int64_t head = 0; head < key_heads; head++) {
          tasks.push_back({static_cast<int64_t>(i), head, first, std::min(rows, sequences[i].queries - first)});
        }
      }
    }
    return tasks;
  }

  void attend(const Task& task, AttentionWorkspace& workspace) const {
    const Sequence<Number>& sequence = sequences[task.sequence];
    const int64_t group = heads / key_heads, filled = round_up(task.rows, TILE_QUERIES), rows = group * filled;
    float* means = workspace.means.take<float>(rows * width);
    std::fill(means, means + rows * width, 0.0f);
    const Running running{workspace.largest.take<float>(rows), workspace.sums.take<float>(rows)};
    std::fill(running.largest, running.largest + rows, -INFINITE);
    std::fill(running.sum, running.sum + rows, 0.0f);
    const Keys seen = keys_of(sequence, task.first_row, task.rows);
    Number* keys = workspace.keys.take<Number>(KEY_BLOCK * depth);
    Number* values = workspace.values.take<Number>(KEY_BLOCK * width);
    const int64_t query_block = by_tiles() ? TILE_QUERIES : QUERY_BLOCK;
    for (int64_t block = seen.first / KEY_BLOCK * KEY_BLOCK; block < seen.last; block += KEY_BLOCK) {
      const int64_t count = std::min(KEY_BLOCK, sequence.keys - block);
      const Filling filling{count, round_up(count, DEPTH_STEP<Number>)};
      const auto [from, stride] = together(sequence, &Slots<Number>::keys, task.key_head, block, count, depth, workspace);
      if (by_vectors<Number>() || by_tiles()) {
        pack_key_tiles(from, stride, filling, depth, keys);
      } else {
        pack_keys(from, stride, filling, depth, KEY_BLOCK, keys);
      }
      const auto [value_from, value_stride] =
          together(sequence, &Slots<Number>::values, task.key_head, block, count, width, workspace);
      pack_values(value_from, value_stride, filling, width, values);
      for (int64_t member = 0; member < group; member++) {
        for (int64_t row = 0; row < task.rows; row += query_block) {
          const int64_t place = member * filled + row;
          add_block(task, task.key_head * group + member, task.first_row + row, std::min(query_block, task.rows - row), block,
                    count, keys, values, means + place * width, {running.largest + place, running.sum + place}, workspace);
        }
      }
    }
    for (int64_t member = 0; member < group; member++) {
      for (int64_t row = 0; row < task.rows; row++) {
        const int64_t place = member * filled + row;
        const Vector share(running.sum[place] > 0 ? 1.0f / running.sum[place] : 0.0f);
        Number* to = output.at(task.key_head * group + member, sequence.query + task.first_row + row);
        for (int64_t i = 0; i < width; i += WIDTH) store(to + i, load(means + place * width + i) * share);
      }
    }
  }

  // Keys or values `first` to `first` + `count` - 1 of a sequence, of one head, and their stride: those of several slots are
  // copied.
  std::pair<const Number*, int64_t> together(const Sequence<Number>& sequence, Rows<const Number> Slots<Number>::*states,
                                             int64_t head, int64_t first, int64_t count, int64_t numbers,
                                             AttentionWorkspace& workspace) const {
    const Slots<Number>* slots = sequence.slots;
    while (first >= slots->count) first -= slots++->count;
    if (first + count <= slots->count) return {(slots->*states).at(head, slots->first + first), (slots->*states).token_stride};
    Number* copied = workspace.together.take<Number>(KEY_BLOCK * numbers);
    for (int64_t row = 0; row < count; row++, first++) {
      while (first == slots->count) slots++, first = 0;
      std::copy_n((slots->*states).at(head, slots->first + first), numbers, copied + row * numbers);
    }
    return {copied, numbers};
  }

  // The keys that any of `rows` queries from `first` on sees.
  Keys keys_of(const Sequence<Number>& sequence, int64_t first, int64_t rows) const {
    const int64_t position = sequence.past + first;
    return {terms.visibility.at(position, sequence.keys).first,
            terms.visibility.at(position + rows - 1, sequence.keys).last};
  }

  // Adds a block of keys to the sums of `rows` queries of one head, from the sequence's query `first` on.
  void add_block(const Task& task, int64_t head, int64_t first, int64_t rows, int64_t block, int64_t count,
                 const Number* keys, const Number* values, float* means, Running running, AttentionWorkspace& workspace) const {
    const Sequence<Number>& sequence = sequences[task.sequence];
    const Keys seen = keys_of(sequence, first, rows);
    // Columns of the block that some query of these sees; the depth of the second product wants whole steps.
    constexpr int64_t STEP = DEPTH_STEP<Number>;
    const int64_t begin = std::max<int64_t>(0, seen.first - block) / KEY_TILE * KEY_TILE;
    const int64_t end = round_up(std::min(count, seen.last - block), STEP);
    if (begin >= end) return;
    const int64_t columns = end - begin;
    float* scores = workspace.scores.take<float>(QUERY_BLOCK * KEY_BLOCK);
    Number* weights = workspace.weights.take<Number>(QUERY_BLOCK * KEY_BLOCK);
    Keys visible[QUERY_BLOCK];
    for (int64_t row = 0; row < rows; row++) {
      const Keys all = terms.visibility.at(sequence.past + first + row, sequence.keys);
      const auto inside = [&](int64_t key) { return std::clamp<int64_t>(key - block - begin, 0, columns); };
      visible[row] = {inside(all.first), inside(all.last)};
    }
    multiply_keys(head, sequence.query + first, rows, visible, begin, columns, keys, scores, workspace);
    const bool plain = bias.first == nullptr && terms.softcap == 0 && terms.scale > 0;
    for (int64_t row = 0; row < rows && !plain; row++) {
      finish_scores(scores + row * KEY_BLOCK, visible[row], terms, bias_of(task.sequence, head, first + row, block + begin));
    }
    alignas(64) float earlier[QUERY_BLOCK];
    const float factor = plain ? terms.scale * LOG2_E : 1.0f;
    weigh(scores, weights, rows, KEY_BLOCK, columns, visible, factor, running, earlier);
    add_values(weights, rows, visible, columns, values + begin * width, earlier, means);
  }

  // Scores [rows, KEY_BLOCK] of queries of a head, from token `first` on, with the keys that they see of the `columns` from
  // `begin` on.
  void multiply_keys(int64_t head, int64_t first, int64_t rows, const Keys* seen, int64_t begin, int64_t columns,
                     const Number* keys, float* scores, AttentionWorkspace& workspace) const {
    if constexpr (HasLanes<Number>) {
      if (by_vectors<Number>()) {
        multiply_key_tiles(query.at(head, first), query.token_stride, rows, seen, keys + begin * depth, depth, scores, KEY_BLOCK);
        return;
      }
    }
    // Products read whole tiles, or steps of rows, and behind the last query there may be no memory.
    const auto copied = [&] {
      Number* queries = workspace.queries.take<Number>(QUERY_BLOCK * depth);
      for (int64_t row = 0; row < rows; row++) std::copy_n(query.at(head, first + row), depth, queries + row * depth);
      return queries;
    };
    if constexpr (std::is_same_v<Number, BFloat16>) {
      if (by_tiles()) {
        const bool whole = rows == TILE_QUERIES;
        const Number* queries = whole ? query.at(head, first) : copied();
        for (int64_t column = 0; column < columns; column += KEY_TILE) {
          multiply_row_of_tiles<false>(std::min(KEY_TILE, columns - column), queries, whole ? query.token_stride : depth,
                                       keys + (begin + column) * depth, KEY_TILE, depth / TILE_NUMBERS, scores + column,
                                       KEY_BLOCK);
        }
        return;
      }
    }
    const int64_t filled_rows = round_up(rows, ROW_STEP);
    Number* queries = copied();
    std::fill(queries + rows * depth, queries + filled_rows * depth, Number(0.0f));
    multiply(filled_rows, columns, depth, queries, depth, keys + begin * TOGETHER<Number>, KEY_BLOCK, scores, KEY_BLOCK,
             false);
  }

  // means = factors means + weights x values, row by row, for the keys that the rows see.
  void add_values(const Number* weights, int64_t rows, const Keys* seen, int64_t columns, const Number* values,
                  const float* factors, float* means) const {
    if constexpr (HasLanes<Number>) {
      if (by_vectors<Number>()) return add_value_tiles(weights, KEY_BLOCK, rows, seen, values, width, factors, means);
    }
    for (int64_t row = 0; row < rows; row++) {
      if (factors[row] == 1.0f) continue;
      const Vector factor(factors[row]);
      for (int64_t i = 0; i < width; i += WIDTH) store(means + row * width + i, load(means + row * width + i) * factor);
    }
    if constexpr (std::is_same_v<Number, BFloat16>) {
      if (by_tiles()) {  // of whole tiles: rows behind the last are no query's
        return multiply_row_of_tiles<true>(width, weights, KEY_BLOCK, values, width, columns / TILE_NUMBERS, means, width);
      }
    }
    multiply(rows, width, columns, weights, KEY_BLOCK, values, width, means, width, true);
  }

  const float* bias_of(int64_t sequence, int64_t head, int64_t row, int64_t column) const {
    if (bias.first == nullptr) return nullptr;
    return bias.first + sequence * bias.sequence_stride + head * bias.head_stride + row * bias.query_stride + column;
  }
};

}  // namespace selvage

// MaxSim: the sum over a query's rows of the largest product with a row of a document (ColBERT, arXiv:2004.12832).
//
// A thread compares a document with all queries that want it. A score is summed in one order, which its query's length
// tells: it has the same bits whatever else is compared.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

#include "best_products.h"
#include "tasks.h"

namespace selvage {
namespace {

constexpr int64_t TOGETHER = 1 << 16;        // numbers of query rows that meet a document at once: a cache holds them
constexpr int64_t MOST_TOGETHER_ROWS = 512;  // of them, and at least a block
constexpr int64_t MOST_WIDTH = 16384;        // of rows: memory grows with it
constexpr int64_t TASK_COST = 8;             // rows of a document that cost as much as beginning one

// Rows `first` to `first` + `rows` - 1 of a tensor.
struct Text {
  int64_t first, rows;
};

// Every query with every document. Scores lie as [queries, documents], the queries' `stride` apart.
struct Matrix {
  const Text *queries, *documents;
  int64_t query_count, document_count;
  float* scores;
  int64_t stride;
};

// A document, by its number, that one thread compares with the queries of a matrix.
struct Task {
  size_t matrix;
  int64_t document;
};

// Rows of one query that lie together, `place` among those that are multiplied together.
struct Piece {
  int64_t query, first, rows, place;
};

// Added in the order of the rows, WIDTH at a time.
float total(const float* maxima, int64_t count) {
  Vector sums(0.0f);
  for (int64_t i = 0; i < count; i += WIDTH) sums = sums + load(maxima + i, std::min(WIDTH, count - i));
  return sum(sums);
}

template <typename Stored, typename Number>
class MaxSim {
 public:
  StoredRows<Stored, Number> queries, documents;
  const bool* mask;  // of document rows that count, or none
  float empty;       // the score of a document without rows that count

  void run(const std::vector<Matrix>& matrices) const {
    std::vector<Task> tasks;
    std::vector<int64_t> costs;
    for (size_t i = 0; i < matrices.size(); i++) {
      const Matrix& matrix = matrices[i];
      int64_t rows = 1;
      for (int64_t query = 0; query < matrix.query_count; query++) rows += matrix.queries[query].rows;
      for (int64_t document = 0; document < matrix.document_count; document++) {
        tasks.push_back({i, document});
        costs.push_back((matrix.documents[document].rows + TASK_COST) * rows);
      }
    }
    share_tasks(costs, [&](const auto& next) {
      const ProductsOfRegion<Number> products;
      BestProducts<Stored, Number> best;
      for (auto [task, end] = next(); task < end; std::tie(task, end) = next()) {
        while (task < end) {
          const Task first = tasks[task];
          int64_t count = 0;
          for (; task < end && tasks[task].matrix == first.matrix; task++) count++;
          compare(matrices[first.matrix], first.document, first.document + count, best);
        }
      }
    });
  }

 private:
  // Documents `first` to `last` - 1 with all queries, of which as many at once as are packed together.
  void compare(const Matrix& matrix, int64_t first, int64_t last, BestProducts<Stored, Number>& best) const {
    for (int64_t query = 0; query < matrix.query_count; query++) {
      std::fill(matrix.scores + query * matrix.stride + first, matrix.scores + query * matrix.stride + last, 0.0f);
    }
    std::vector<Piece> pieces;
    const int64_t most = std::clamp(TOGETHER / queries.filled, QUERY_ROWS, MOST_TOGETHER_ROWS);
    int64_t together = 0;
    const auto compare_pieces = [&] {
      best.begin(together, queries.filled);
      for (const Piece& piece : pieces) best.add(queries, piece.first, piece.rows);
      best.pack(queries.filled);
      for (int64_t document = first; document < last; document++) {
        const Text text = matrix.documents[document];
        best.multiply(documents, text.first, text.rows, mask);
        for (const Piece& piece : pieces) {
          matrix.scores[piece.query * matrix.stride + document] += total(best.maxima + piece.place, piece.rows);
        }
      }
      pieces.clear(), together = 0;
    };
    for (int64_t query = 0; query < matrix.query_count; query++) {
      const Text text = matrix.queries[query];
      // Cut by the query's own rows, so that their sum does not depend on the queries before it.
      for (int64_t row = 0; row < text.rows; row += most) {
        const int64_t count = std::min(most, text.rows - row);
        if (together + count > most) compare_pieces();
        pieces.push_back({query, text.first + row, count, together}), together += count;
      }
    }
    if (together > 0) compare_pieces();
    for (int64_t document = first; document < last; document++) {
      if (counts(matrix.documents[document])) continue;
      for (int64_t query = 0; query < matrix.query_count; query++) matrix.scores[query * matrix.stride + document] = empty;
    }
  }

  bool counts(const Text& document) const {
    if (mask == nullptr) return document.rows > 0;
    const bool* first = mask + document.first;
    return std::find(first, first + document.rows, true) != first + document.rows;
  }
};

// The texts that begin at `firsts` [n] and have `rows` [n] rows each, all inside of `most` rows.
std::vector<Text> texts_of(const at::Tensor& firsts, const at::Tensor& rows, int64_t most) {
  for (const at::Tensor& numbers : {firsts, rows}) {
    TORCH_CHECK(numbers.dim() == 1 && numbers.size(0) == firsts.size(0) && numbers.scalar_type() == at::kLong &&
                    numbers.is_contiguous(),
                "places of texts must be [n] int64");
  }
  const auto *first = firsts.const_data_ptr<int64_t>(), *count = rows.const_data_ptr<int64_t>();
  std::vector<Text> texts;
  for (int64_t i = 0; i < firsts.size(0); i++) {
    TORCH_CHECK(first[i] >= 0 && count[i] >= 0 && count[i] <= most - first[i], "text ", i, " lies outside of the rows");
    texts.push_back({first[i], count[i]});
  }
  return texts;
}

// What is compared: `numbers` of queries and of documents, and whether they are pairs.
struct Comparison {
  int64_t queries, documents;
  bool pairs;
  int64_t scores() const { return pairs ? queries : queries * documents; }
};

// The comparisons of [3 n] numbers, which name each text once, in the order of the texts.
std::vector<Comparison> comparisons_of(at::IntArrayRef numbers, size_t queries, size_t documents) {
  TORCH_CHECK(numbers.size() % 3 == 0, "a comparison has 3 numbers");
  std::vector<Comparison> comparisons;
  for (; !numbers.empty(); numbers = numbers.slice(3)) {
    const auto of_queries = static_cast<size_t>(numbers[0]), of_documents = static_cast<size_t>(numbers[1]);
    TORCH_CHECK(of_queries <= queries && of_documents <= documents, "there are fewer texts than are compared");
    TORCH_CHECK(!numbers[2] || of_queries == of_documents, "pairs need as many queries as documents");
    queries -= of_queries, documents -= of_documents;
    comparisons.push_back({numbers[0], numbers[1], numbers[2] != 0});
  }
  TORCH_CHECK(queries == 0 && documents == 0, "there are more texts than are compared");
  return comparisons;
}

// A matrix for each comparison, or for each of its pairs. Their scores follow each other.
std::vector<Matrix> matrices_of(const std::vector<Comparison>& comparisons, const Text* queries, const Text* documents,
                                float* scores) {
  std::vector<Matrix> matrices;
  for (const Comparison& compared : comparisons) {
    if (compared.pairs) {
      for (int64_t i = 0; i < compared.queries; i++) matrices.push_back({queries + i, documents + i, 1, 1, scores + i, 1});
    } else {
      matrices.push_back({queries, documents, compared.queries, compared.documents, scores, compared.documents});
    }
    queries += compared.queries, documents += compared.documents, scores += compared.scores();
  }
  return matrices;
}

at::Tensor maxsim(const at::Tensor& queries, const at::Tensor& documents, const at::Tensor& query_firsts,
                  const at::Tensor& query_rows, const at::Tensor& document_firsts, const at::Tensor& document_rows,
                  at::IntArrayRef comparisons, const std::optional<at::Tensor>& mask, double empty) {
  TORCH_CHECK(queries.dim() == 2 && documents.dim() == 2 && queries.size(1) == documents.size(1) && queries.is_contiguous() &&
                  documents.is_contiguous() && queries.scalar_type() == documents.scalar_type(),
              "rows must be [n, width] of one number format and lie together");
  TORCH_CHECK(queries.size(1) > 0 && queries.size(1) <= MOST_WIDTH, "rows have ", queries.size(1), " numbers, at most ", MOST_WIDTH,
              " can be compared");
  if (mask) {
    TORCH_CHECK(mask->dim() == 1 && mask->size(0) == documents.size(0) && mask->scalar_type() == at::kBool && mask->is_contiguous(),
                "the mask must be [documents' rows] bool");
  }
  const auto of_queries = texts_of(query_firsts, query_rows, queries.size(0));
  const auto of_documents = texts_of(document_firsts, document_rows, documents.size(0));
  const auto compared = comparisons_of(comparisons, of_queries.size(), of_documents.size());
  int64_t count = 0;
  for (const Comparison& comparison : compared) count += comparison.scores();
  at::Tensor scores = at::empty({count}, queries.options().dtype(at::kFloat));
  const auto matrices = matrices_of(compared, of_queries.data(), of_documents.data(), scores.mutable_data_ptr<float>());
  const auto compute = [&]<typename Stored, typename Number>() {
    const int64_t width = queries.size(1);
    MaxSim<Stored, Number>{{queries.const_data_ptr<Stored>(), queries.size(0), width},
                           {documents.const_data_ptr<Stored>(), documents.size(0), width},
                           mask ? mask->const_data_ptr<bool>() : nullptr,
                           static_cast<float>(empty)}
        .run(matrices);
  };
  switch (queries.scalar_type()) {
    case at::kFloat:
      compute.template operator()<float, float>();
      break;
    case at::kBFloat16:
#ifdef CPU_CAPABILITY_AVX512
      if (by_vectors<BFloat16>() || has_matrix_units<BFloat16>()) {
        compute.template operator()<BFloat16, BFloat16>();
        break;
      }
#endif
      compute.template operator()<BFloat16, float>();
      break;
    case at::kHalf:
      compute.template operator()<c10::Half, float>();
      break;
    default:
      TORCH_CHECK(false, "rows are float32, bfloat16 or float16; these are ", queries.scalar_type());
  }
  return scores;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(selvage, library) {
  library.def(
      "maxsim(Tensor queries, Tensor documents, Tensor query_firsts, Tensor query_rows, Tensor document_firsts, "
      "Tensor document_rows, int[] comparisons, Tensor? mask, float empty) -> Tensor");
}

TORCH_LIBRARY_IMPL(selvage, CPU, library) { library.impl("maxsim", maxsim); }

}  // namespace selvage

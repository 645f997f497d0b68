"""Late-interaction comparisons of one step: every job slice adds its own, then all are computed at once."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.engine.step.download import DownloadedArray, StepDownload
from gpu_worker.kernels.maxsim.comparison import Comparison, Mask, MaxSimKernel, Texts
from gpu_worker.ragged.batch import Counts
from shared.vectors import Layout


class ScoreOutput:
    """Scores of one comparison: `start` to `stop` of all scores of the step."""

    def __init__(self, comparisons: "Comparisons", start: int, stop: int) -> None:
        self._comparisons, self._range = comparisons, slice(start, stop)

    @property
    def values(self) -> npt.NDArray[np.float32]:
        """The scores on the host, row-major, once the download arrived: a view."""
        return self._comparisons.scores[self._range]


class Comparisons:
    """All comparisons over the same document rows. Queries are few and are joined; documents stay where they lie."""

    def __init__(self, maxsim: MaxSimKernel) -> None:
        self._maxsim = maxsim
        self._queries: list[Tensor] = []
        self._query_count = self._score_count = 0
        self._comparisons: list[Comparison] = []
        self._scores: DownloadedArray | None = None

    def __len__(self) -> int:
        """Number of comparisons."""
        return len(self._comparisons)

    def add_comparison(self, queries: Tensor, lengths: Counts, documents: Texts, layout: Layout) -> ScoreOutput:
        """Adds a comparison of query rows [sum of lengths, W], end to end, with `documents`.

        `documents` are places of rows in the tensor that `compute` gets.
        """
        end_to_end = Texts.end_to_end(lengths)
        joined = Texts(starts=end_to_end.starts + self._query_count, lengths=lengths)
        comparison = Comparison(queries=joined, documents=documents, layout=layout)
        self._queries.append(queries)
        self._comparisons.append(comparison)
        self._query_count += len(queries)
        start, self._score_count = self._score_count, self._score_count + comparison.count
        return ScoreOutput(self, start, self._score_count)

    def compute(self, documents: Tensor, selected: Mask | None, download: StepDownload) -> None:
        """Computes all scores with document rows [T, W], of which `selected` [T] count, and downloads them."""
        queries = self._queries[0] if len(self._queries) == 1 else torch.cat(self._queries)
        self._scores = download.add_tensor(self._maxsim(queries, documents, self._comparisons, selected))

    @property
    def scores(self) -> npt.NDArray[np.float32]:
        """Scores of all comparisons, one comparison after the other, once the download arrived."""
        assert self._scores is not None
        return self._scores.array  # type: ignore[return-value]

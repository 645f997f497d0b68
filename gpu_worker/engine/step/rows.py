"""Rows that a step makes once for all jobs that want them, and the tables of jobs that they are put into.

Rows of one format, and sparse vectors of one size, are a group; each job has a view of its own rows.
"""

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.device.transfer import DownloadedArray, StepDownload
from gpu_worker.engine.step.sequences import PackedSequences
from gpu_worker.kernels.rows import row_kernels
from gpu_worker.model.heads import sparse_vectors
from gpu_worker.model.heads.sparse_vectors import Vector
from gpu_worker.ragged.batch import Counts, Ids
from shared.jobs import Rows
from shared.vectors import DataType

Bytes = npt.NDArray[np.uint8]


class RowFormat(NamedTuple):
    """The format of rows: their leading `dimensions` (0: all), of `unit` length or as they are.

    They are packed as `data_type` and downloaded; None: they stay on the device as float32.
    """

    dimensions: int = 0
    unit: bool = True
    data_type: DataType | None = None


class RowOutput:
    """Rows of one job: `start` to `stop` of the rows of a group."""

    def __init__(self, group: "RowGroup", start: int, stop: int) -> None:
        self._group, self._range = group, slice(start, stop)

    @property
    def tensor(self) -> Tensor:
        """The rows on the device, [n, W] float32, while the step is computed."""
        assert self._group.rows is not None
        return self._group.rows[self._range]

    @property
    def values(self) -> npt.NDArray[Any]:
        """Packed rows [n, B] uint8, or float32 logits [n, labels], once the download arrived: a view."""
        assert self._group.values is not None
        return self._group.values.array[self._range]

    @property
    def scales(self) -> npt.NDArray[Any] | None:
        """Scale of each INT8 row, [n] float32; None for other types."""
        scales = self._group.scales
        return None if scales is None else scales.array[self._range]

    @property
    def finite(self) -> bool:
        """Whether all rows consisted of finite numbers."""
        return self._group.all_finite or bool(self._group.finite[self._range].all())


class RowGroup:
    """All rows that the jobs of a step want in one format, in the order of their requests: n rows.

    `rows` lie on the device, where the format has no type; of others the step's download has `values` [n, ..] and, for
    INT8, `scales` [n].
    """

    def __init__(self, row_format: RowFormat) -> None:
        self.row_format = row_format
        self.rows: Tensor | None = None
        self.values: DownloadedArray | None = None
        self.scales: DownloadedArray | None = None
        self._finite: DownloadedArray | None = None
        self._indices: list[Counts] = []
        self._count = 0

    def add_rows(self, index: Counts) -> RowOutput:
        """Requests rows of the sequences, or of the tokens, at these places of the batch."""
        start, self._count = self._count, self._count + len(index)
        self._indices.append(index)
        return RowOutput(self, start, self._count)

    def __len__(self) -> int:
        """Number of rows: n."""
        return self._count

    @property
    def requested(self) -> bool:
        """Whether any job made a request, be it for no row."""
        return bool(self._indices)

    @property
    def index(self) -> Counts:
        """Places in the batch of all rows, [n]."""
        return np.concatenate(self._indices)

    def finish(self, rows: Tensor, download: StepDownload, index: Tensor | None = None) -> None:
        """Cuts, normalises and packs rows for all jobs at once; packed rows are downloaded.

        `index` [n] picks from rows [N, W]; None: rows are [n, W] already.
        """
        row_format, kernels = self.row_format, row_kernels.choose(rows.device)
        if row_format.data_type is None:
            self.rows = kernels.finished(rows, index, row_format.dimensions, row_format.unit)
            return
        packed = kernels.packed(rows, index, row_format.dimensions, row_format.unit, row_format.data_type)
        self.download_rows(packed.values, packed.finite, download)
        if packed.scales is not None:
            self.scales = download.add_tensor(packed.scales)

    def download_rows(self, values: Tensor, finite: Tensor, download: StepDownload) -> None:
        """Downloads values [n, ..], and which rows of them consist of finite numbers, [n]."""
        self.values, self._finite = download.add_tensor(values), download.add_tensor(finite)

    @property
    def finite(self) -> npt.NDArray[Any]:
        """Which rows consist of finite numbers, [n], once the download arrived."""
        assert self._finite is not None
        return self._finite.array

    @cached_property
    def all_finite(self) -> bool:
        """Whether all rows consist of finite numbers, as they nearly always do."""
        return bool(self.finite.all())


class SparseOutput:
    """Sparse vectors of one job, whose sequences and tokens begin at these places of a group's."""

    def __init__(self, group: "SparseGroup", packed: PackedSequences, first: int, first_token: int) -> None:
        self._group, self._packed = group, packed
        self._rows = slice(first, first + len(packed))
        self._tokens = slice(first_token, first_token + packed.tokens)

    def vectors(self) -> tuple[list[Vector], bool]:
        """The vector of each sequence, and whether all weights were finite numbers, once the download arrived."""
        return self._group.vectors(self._packed, self._rows, self._tokens)


class SparseGroup:
    """All sparse vectors of a step with at most `top_k` weights each (0: no limit): n vectors."""

    def __init__(self, top_k: int) -> None:
        self._top_k = top_k
        self._packed: list[PackedSequences] = []
        self._count = self._tokens = 0
        self._weights: list[DownloadedArray] = []
        self._dropped: Ids | None = None

    def add_sequences(self, packed: PackedSequences) -> SparseOutput:
        """Requests the sparse vectors of a job's sequences."""
        output = SparseOutput(self, packed, self._count, self._tokens)
        self._count, self._tokens = self._count + len(packed), self._tokens + packed.tokens
        self._packed.append(packed)
        return output

    @property
    def places(self) -> Counts:
        """Places of all sequences in the batch, [n]."""
        return np.concatenate([packed.places for packed in self._packed])

    def download_rows(self, weights: Tensor, download: StepDownload) -> None:
        """Downloads weights [n, vocabulary] float32: all of them, or the largest ones of each row with their ids."""
        keeps_all = not self._top_k or self._top_k >= weights.shape[1]
        finite = download.add_tensor(torch.isfinite(weights.sum(dim=1)))
        if keeps_all:
            self._weights = [finite, download.add_tensor(weights)]
        else:
            values, ids = weights.topk(self._top_k, dim=1)
            self._weights = [finite, download.add_tensor(values), download.add_tensor(ids.int())]

    def download_tokens(self, weights: Tensor, dropped: Ids, download: StepDownload) -> None:
        """Downloads lexical weights [tokens of the n sequences] float32; ids in `dropped` carry no weight."""
        self._dropped = dropped
        self._weights = [download.add_tensor(weights)]

    def vectors(self, packed: PackedSequences, rows: slice, tokens: slice) -> tuple[list[Vector], bool]:
        """Vectors of one job from its `rows` or `tokens` of the weights, and whether these were finite."""
        weights = [downloaded.array for downloaded in self._weights]
        if self._dropped is not None:
            return self._of_tokens(packed, weights[0][tokens], self._dropped)
        values, finite = weights[1][rows], bool(weights[0][rows].all())
        if len(weights) == 2:
            return [sparse_vectors.of_row(row) for row in values], finite
        return [sparse_vectors.of_pairs(*pair) for pair in zip(weights[2][rows], values, strict=True)], finite

    def _of_tokens(
        self, packed: PackedSequences, weights: npt.NDArray[np.generic], dropped: Ids
    ) -> tuple[list[Vector], bool]:
        texts = [packed.sequences.ids_of(number) for number in packed.numbers.tolist()]
        vectors = sparse_vectors.of_tokens(texts, np.nan_to_num(weights), dropped, self._top_k)
        return vectors, bool(np.isfinite(weights).all())


class Table:
    """N rows of one width in one data type, and their scales.

    Where one step made all rows of a job, they stay in its download; otherwise the rows of each step are copied here.
    """

    def __init__(self, rows: int, dimensions: int, data_type: DataType) -> None:
        self.dimensions, self.finite = dimensions, True
        self._rows, self._data_type = rows, data_type
        self._data: Bytes | None = None
        self._scales: Bytes | None = None

    def put_rows(self, places: Counts, rows: RowOutput) -> None:
        """Puts n rows at `places` [n], which ascend."""
        self.finite &= rows.finite
        scales = None if rows.scales is None else rows.scales.view(np.uint8).reshape(-1, 4)
        if len(places) == self._rows:
            self._data, self._scales = rows.values, scales
            return
        if self._data is None:
            self._data = np.empty((self._rows, self._data_type.row_bytes(self.dimensions)), dtype=np.uint8)
            self._scales = np.empty((self._rows, self._data_type.scale_bytes), dtype=np.uint8)
        self._data[places] = rows.values
        if scales is not None:
            assert self._scales is not None
            self._scales[places] = scales

    def all_rows(self) -> Rows:
        """Returns all rows, without a copy."""
        return Rows(dimensions=self.dimensions, data=byte_view(self._data), scales=byte_view(self._scales))


def byte_view(array: npt.NDArray[np.generic] | None) -> memoryview | bytes:
    """The bytes of an array, without a copy where it is contiguous; empty for None."""
    return b"" if array is None or not array.size else np.ascontiguousarray(array).reshape(-1).view(np.uint8).data

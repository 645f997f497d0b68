"""Rows that a step makes once for all job slices that want one format; each slice has a view of its own rows."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from gpu_worker.engine.step.download import DownloadedArray, StepDownload
from gpu_worker.kernels.rows import row_kernels
from gpu_worker.ragged.batch import Counts
from shared.vectors import DataType


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFormat:
    """The format of rows: their leading `dimensions` (0: all), of `unit` length or as they are.

    They are packed as `data_type` and downloaded; None: they stay on the device as float32.
    """

    dimensions: int = 0
    unit: bool = True
    data_type: DataType | None = None


class RowOutput:
    """Rows of one job slice: `start` to `stop` of the rows of a group."""

    def __init__(self, group: "RowGroup", start: int, stop: int) -> None:
        self._group, self._range = group, slice(start, stop)

    @property
    def tensor(self) -> Tensor:
        """The rows on the device, [n, W] float32, while the step is computed."""
        assert self._group.rows is not None
        return self._group.rows[self._range]

    @property
    def values(self) -> npt.NDArray[np.uint8]:
        """Packed rows [n, B], or float32 logits [n, labels], once the download arrived: a view."""
        return self._group.values[self._range]

    @property
    def scales(self) -> npt.NDArray[np.float32] | None:
        """Scale of each INT8 row, [n]; None for other types."""
        scales = self._group.scales
        return None if scales is None else scales[self._range]

    @property
    def finite(self) -> bool:
        """Whether all rows consisted of finite numbers."""
        return self._group.all_finite or bool(self._group.finite[self._range].all())


class RowGroup:
    """All rows that the job slices of a step want in one format, in the order of their requests: n rows."""

    def __init__(self, row_format: RowFormat) -> None:
        self.row_format = row_format
        self.rows: Tensor | None = None
        self._indices: list[Counts] = []
        self._count = 0
        self._values: DownloadedArray | None = None
        self._finite: DownloadedArray | None = None
        self._scales: DownloadedArray | None = None

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
        """Whether any job slice made a request, be it for no row."""
        return bool(self._indices)

    @property
    def index(self) -> Counts:
        """Places in the batch of all rows, [n]."""
        return np.concatenate(self._indices)

    def finish(self, rows: Tensor, download: StepDownload, index: Tensor | None = None) -> None:
        """Cuts, normalises and packs rows for all job slices at once; packed rows are downloaded.

        `index` [n] picks from rows [N, W]; None: rows are [n, W] already.
        """
        row_format, kernels = self.row_format, row_kernels.choose(rows.device)
        if row_format.data_type is None:
            self.rows = kernels.finished(rows, index, row_format.dimensions, row_format.unit)
            return
        packed = kernels.packed(rows, index, row_format.dimensions, row_format.unit, row_format.data_type)
        self.download_rows(packed.values, packed.finite, download)
        if packed.scales is not None:
            self._scales = download.add_tensor(packed.scales)

    def download_rows(self, values: Tensor, finite: Tensor, download: StepDownload) -> None:
        """Downloads values [n, ..], and which rows of them consist of finite numbers, [n]."""
        self._values, self._finite = download.add_tensor(values), download.add_tensor(finite)

    @property
    def values(self) -> npt.NDArray[Any]:
        """Values [n, ..] of all rows, once the download arrived."""
        assert self._values is not None
        return self._values.array

    @property
    def finite(self) -> npt.NDArray[Any]:
        """Which rows consist of finite numbers, [n], once the download arrived."""
        assert self._finite is not None
        return self._finite.array

    @cached_property
    def all_finite(self) -> bool:
        """Whether all rows consist of finite numbers, as they nearly always do."""
        return bool(self.finite.all())

    @property
    def scales(self) -> npt.NDArray[Any] | None:
        """Scales [n] of INT8 rows, once the download arrived; None for other types."""
        return None if self._scales is None else self._scales.array

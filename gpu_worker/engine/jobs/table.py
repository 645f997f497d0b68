"""Rows of a job in their order, filled step by step. numpy only."""

import numpy as np
import numpy.typing as npt

from gpu_worker.engine.step.row_outputs import RowOutput
from gpu_worker.ragged.batch import Counts
from shared.jobs import Rows
from shared.vectors import DataType

Bytes = npt.NDArray[np.uint8]


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
        """All rows, without a copy."""
        return Rows(dimensions=self.dimensions, data=byte_view(self._data), scales=byte_view(self._scales))


def byte_view(array: npt.NDArray[np.generic] | None) -> memoryview | bytes:
    """The bytes of an array, without a copy where it is contiguous; empty for None."""
    return b"" if array is None or not array.size else np.ascontiguousarray(array).reshape(-1).view(np.uint8).data

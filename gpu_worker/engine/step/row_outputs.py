"""Rows that a step makes once for all jobs that want them in one form, and each job's share of them: a view."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from gpu_worker.engine.step.download import StepDownload
from gpu_worker.kernels.rows import choice
from gpu_worker.ragged.batch import Counts
from shared.vectors import DataType


@dataclass(frozen=True, slots=True, kw_only=True)
class RowForm:
    """How rows are wanted: leading `dimensions` (0: all), of `unit` length or as they are.

    Packed as `data_type`, or, where that is None, as float32 on the device.
    """

    dimensions: int = 0
    unit: bool = True
    data_type: DataType | None = None


class RowOutput:
    """A job's rows `start` to `stop` of what a group of jobs wanted in one form."""

    def __init__(self, group: "RowGroup", start: int, stop: int) -> None:
        self._group, self._own = group, slice(start, stop)

    @property
    def tensor(self) -> Tensor:
        """[n, W] float32 on the device, while the step is computed."""
        assert self._group.rows is not None
        return self._group.rows[self._own]

    @property
    def values(self) -> npt.NDArray[np.uint8]:
        """[n, B] packed rows, or float32 [n, labels], once the shipment arrived: a view."""
        return self._group.shipped(0)[self._own]

    @property
    def scales(self) -> npt.NDArray[np.float32] | None:
        """[n] of INT8."""
        return self._group.shipped(2)[self._own] if self._group.scaled else None

    @property
    def finite(self) -> bool:
        """Whether all of its rows were numbers."""
        return bool(self._group.shipped(1)[self._own].all())


class RowGroup:
    """All rows that a step's jobs want in one form, in the order in which they asked."""

    def __init__(self, form: RowForm) -> None:
        self.form = form
        self.rows: Tensor | None = None
        self.scaled = False
        self._indices: list[Counts] = []
        self._count = 0
        self._slots: list[int] = []
        self._shipment: StepDownload | None = None

    def add(self, index: Counts) -> RowOutput:
        """Takes the places or rows that a job wants."""
        start, self._count = self._count, self._count + len(index)
        self._indices.append(index)
        return RowOutput(self, start, self._count)

    def __len__(self) -> int:
        """n."""
        return self._count

    @property
    def asked(self) -> bool:
        """Whether any job wants them, if only none of them."""
        return bool(self._indices)

    @property
    def index(self) -> Counts:
        """[n] of all jobs."""
        return np.concatenate(self._indices)

    def finish(self, rows: Tensor, shipment: StepDownload, index: Tensor | None = None) -> None:
        """Cuts, normalises and packs rows [n, W] for all jobs at once, and ships them if they are to travel.

        `index` [n]: of rows [N, W] these; None: all.
        """
        form, kernels = self.form, choice.choose(rows.device)
        if form.data_type is None:
            self.rows = kernels.finished(rows, index, form.dimensions, form.unit)
            return
        packed = kernels.packed(rows, index, form.dimensions, form.unit, form.data_type)
        self.ship(packed.values, packed.finite, shipment)
        if packed.scales is not None:
            self._slots.append(shipment.add(packed.scales))
            self.scaled = True

    def ship(self, values: Tensor, finite: Tensor, shipment: StepDownload) -> None:
        """Values [n, ..], and which of them were made of numbers, [n]."""
        self._shipment = shipment
        self._slots = [shipment.add(values), shipment.add(finite)]

    def shipped(self, slot: int) -> npt.NDArray[Any]:
        assert self._shipment is not None
        return self._shipment.arrays[self._slots[slot]]

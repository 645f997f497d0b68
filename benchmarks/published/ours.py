"""How the worker cuts a step's rows for the jobs that want them, driven without a model: see `splitting.py`."""

import time
from collections.abc import Sequence

import numpy as np
import torch

from gpu_worker.device.transfer import StepDownload
from gpu_worker.engine.step.rows import RowFormat, RowGroup
from gpu_worker.ragged.texts import PackedTexts, offsets_of

SPLIT_SECONDS = 1.0
"""Seconds for which a step's rows are cut again and again."""


def splitting(lengths: Sequence[int], first: int, count: int, width: int, *, apart: bool) -> float:
    """Measures the seconds, median of many, in which the host asks for the token rows of `count` texts of a step from
    `first` on, and cuts what is made of them. `apart`: each text is a job of its own."""
    offsets = offsets_of(tuple(lengths))
    texts = PackedTexts(lengths=tuple(lengths), offsets=offsets, tokens=np.zeros(offsets[-1], dtype=np.int64))
    places = np.arange(first, first + count)
    jobs = np.split(places, count) if apart else [places]
    size = int(offsets[first + count] - offsets[first])
    packed, finite = torch.zeros(size, 2 * width, dtype=torch.uint8), torch.ones(size, dtype=torch.bool)

    def split() -> None:
        group, download = RowGroup(RowFormat()), StepDownload()
        outputs = [group.add_rows(texts.rows_of(job)) for job in jobs]
        assert len(group.index) == size
        group.download_rows(packed, finite, download)
        download.wait()
        assert len([output.values for output in outputs]) == len(jobs)

    taken, stop = list[float](), time.perf_counter() + SPLIT_SECONDS
    while (begun := time.perf_counter()) < stop:
        split()
        taken.append(time.perf_counter() - begun)
    return float(np.median(taken))

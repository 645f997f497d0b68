"""The parts of a run."""

import pytest
import torch
from torch import nn

from benchmarks import laps
from benchmarks.laps import Laps


def test_a_run_is_told_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ends where the next begins; a second run knows nothing of the first."""
    clock = iter([10.0, 11.0, 13.0, 16.0, 20.0, 25.0])
    monkeypatch.setattr(laps.time, "perf_counter", lambda: next(clock))
    watch = Laps()
    watch.begin()
    watch.lap()
    watch.lap()
    assert watch.end() == [1, 2, 3]
    watch.begin()
    assert watch.end() == [5]


def test_a_part_ends_with_each_layer() -> None:
    """What layers give stays as it is; what comes after the last is a part, too."""
    watch, layers, rows = Laps(), nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.ones(1, 2)
    expected = layers(rows)
    watch.at(layers)
    watch.begin()
    assert torch.equal(layers(rows), expected)
    assert len(watch.end()) == 3

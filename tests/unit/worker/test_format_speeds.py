"""The log tells which number formats this processor multiplies faster."""

import pytest
import torch

from gpu_worker.device.placement import Placement
from gpu_worker.kernels.cpu.library import KernelLibrary, load
from gpu_worker.model import loading
from gpu_worker.model.tune import format_speeds
from gpu_worker.model.tune.format_speeds import advice, product_seconds
from gpu_worker.model.tune.split import NAMES

FASTER = {"float32": 4.0, "bfloat16": 2.0, "int8": 1.0}


@pytest.mark.parametrize(
    ("seconds", "chosen", "expected"),
    [
        (FASTER, "float32", "2.0 times by --dtype bfloat16, 4.0 times by --linear int8; they round more"),
        (FASTER, "bfloat16", ": 2.0 times by --linear int8; they round more"),
        (FASTER, "int8", ""),
        ({"float32": 1.0, "bfloat16": 2.0}, "float32", ""),
        (
            {"float32": 1.0, "bfloat16": 2.0},
            "bfloat16",
            "bfloat16 is slower than float32 on this processor: its products ",
        ),
        ({"float32": 1.0, "bfloat16": 0.9}, "float32", ""),
        ({"float32": 1.0}, "float16", ""),
        ({}, "float32", ""),
    ],
)
def test_clear_differences_are_told(seconds: dict[str, float], chosen: str, expected: str) -> None:
    """A near tie and an unknown format are not."""
    line = advice(seconds, chosen)
    assert expected in line
    assert bool(line) == bool(expected)


def test_each_format_of_the_kernels_is_measured() -> None:
    """Once a process; nothing where there are no kernels."""
    kernels = load()
    names = {str(dtype).removeprefix("torch.") for dtype in kernels.formats} | ({"int8"} if kernels.int8 else set())
    names |= set(NAMES.values()) if {"float32", "bfloat16"} <= names else set()
    seconds = product_seconds(kernels)
    assert set(seconds) == names
    assert all(value > 0 for value in seconds.values())
    assert product_seconds(kernels) is seconds
    assert product_seconds(KernelLibrary(missing="none")) == {}


def test_a_load_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a line of the log, for the format that was chosen."""
    monkeypatch.setattr(format_speeds, "product_seconds", lambda _: FASTER)
    model = loading.load("random:tiny-bert", Placement(device=torch.device("cpu"), dtype=torch.float32))
    assert model.findings[-1].startswith("products would be faster on this processor: 2.0 times by --dtype bfloat16")

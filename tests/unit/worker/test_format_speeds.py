"""Log and card tell which number formats this processor multiplies faster, and how close a model would stay."""

import pytest
import torch

from gpu_worker.kernels.cpu.library import KernelLibrary, load
from gpu_worker.model.tune.format_speeds import advice, faster, fastest, floored, product_seconds, warning
from gpu_worker.model.tune.split import NAMES

FASTER = {"float32": 4.0, "bfloat16": 2.0, "int8": 1.0}


@pytest.mark.parametrize(
    ("seconds", "chosen", "expected"),
    [
        (FASTER, "float32", {"bfloat16": 2.0, "int8": 4.0}),
        (FASTER, "bfloat16", {"int8": 2.0}),
        (FASTER, "int8", {}),
        ({"float32": 1.0, "bfloat16": 0.9}, "float32", {}),
        ({"float32": 1.0}, "float16", {}),
        ({}, "float32", {}),
    ],
)
def test_clear_differences_count(seconds: dict[str, float], chosen: str, expected: dict[str, float]) -> None:
    """A near tie and an unknown format do not."""
    assert faster(seconds, chosen) == expected


def test_the_line_has_speed_cosine_and_setting() -> None:
    """Or why there is no cosine."""
    assert advice({}, {}, "") == ""
    assert advice({"bfloat16": 4.2, "int8": 6.0}, {"bfloat16": 0.99991}, "not measured") == (
        "products in bfloat16 are 4.2 x as fast on this processor; cosine to float32 0.99991: --dtype bfloat16; "
        "products in int8 are 6.0 x as fast on this processor; cosine not measured: --linear int8"
    )


@pytest.mark.parametrize(
    ("seconds", "chosen", "expected"),
    [
        ({"float32": 1.0, "bfloat16": 2.0}, "bfloat16", "bfloat16 is slower than float32 on this processor: its "),
        ({"float32": 1.0, "bfloat16": 1.1}, "bfloat16", ""),
        ({"float32": 1.0, "bfloat16": 2.0}, "float32", ""),
        ({"float32": 1.0}, "float16", ""),
        ({}, "bfloat16", ""),
    ],
)
def test_a_slow_choice_is_warned_of(seconds: dict[str, float], chosen: str, expected: str) -> None:
    """With figures."""
    line = warning(seconds, chosen)
    assert expected in line
    assert bool(line) == bool(expected)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (FASTER, "int8"),
        ({"float32": 4.0, "bfloat16": 2.0, "int8": 1.9}, "bfloat16"),
        ({"float32": 4.0, "bfloat16": 3.9, "int8": 1.9}, "int8"),
        ({"float32": 1.0, "bfloat16": 3.0}, "float32"),
        ({"bfloat16": 3.0}, "float32"),
        ({}, "float32"),
    ],
)
def test_the_fastest_is_clearly_faster_than_what_rounds_less(seconds: dict[str, float], expected: str) -> None:
    """Near ties go to what rounds less, so that workers on equal machines choose alike."""
    assert fastest(seconds) == expected


@pytest.mark.parametrize(
    ("cosine", "text"),
    [(0.99319, "0.9931"), (0.99996, "0.99996"), (0.99999985, "0.9999998"), (1.0, "1.00000000"), (0.5, "0.5000")],
)
def test_cosines_are_never_rounded_up(cosine: float, text: str) -> None:
    """With enough digits to tell them from 1."""
    assert floored(cosine) == text


def test_each_format_of_the_kernels_is_measured() -> None:
    """Once a process; nothing where there are no kernels."""
    kernels, threads = load(), torch.get_num_threads()
    names = {str(dtype).removeprefix("torch.") for dtype in kernels.formats} | ({"int8"} if kernels.int8 else set())
    names |= set(NAMES.values()) if {"float32", "bfloat16"} <= names else set()
    seconds = product_seconds(kernels)
    assert set(seconds) == names
    assert all(value > 0 for value in seconds.values())
    assert product_seconds(kernels) is seconds
    assert torch.get_num_threads() == threads
    assert product_seconds(KernelLibrary(missing="none")) == {}

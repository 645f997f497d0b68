"""A processor with matrix units, as matrix_units.py makes one of any: what it rounds is not served."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.loading import Model, load
from gpu_worker.model.verify import own_run
from support.matrix_units import emulate
from support.native import no_kernels
from support.onednn import needs_packed_layers
from support.random_models import random_model
from support.tiny import CPU, DENSE, ask, dense_rows, encode

pytestmark = needs_packed_layers  # or oneDNN's operators are not there


@pytest.fixture
def units() -> Iterator[None]:
    held = emulate()
    yield
    held.clear()


@pytest.mark.usefixtures("units")
@pytest.mark.parametrize("head", [8, 64])
def test_the_load_notices(head: int) -> None:
    """The gate's own run is not multiplied by oneDNN then."""
    assert not own_run.onednn_is_exact(head)


def rows(model: Model) -> np.ndarray:
    """Of a short text, a longer one and a long one."""
    assert not model.encoder.unpacked_reason
    texts = [np.arange(5, 5 + length, dtype=np.int32) for length in (3, 40, 300)]
    return dense_rows(ask(ModelEngine(model), encode(DENSE), texts))


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("name", ["tiny-bert", "tiny-deberta-v2"])
def test_what_is_served_with_them_is_right(name: str, kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of a processor without them, from texts that run among others."""
    if not kernels:
        no_kernels(monkeypatch)
    expected = rows(load(random_model(name), CPU))
    held = emulate()
    try:
        assert np.abs(rows(load(random_model(name), CPU)) - expected).max() < 1e-5
    finally:
        held.clear()


def test_the_setting_for_onednn_is_put_back() -> None:
    setting: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before, during = setting.fp32_precision, []

    def fail() -> None:
        with own_run.onednn_products():
            during.append(setting.fp32_precision)
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    assert during != [before]
    assert setting.fp32_precision == before

"""A processor with matrix units, as matrix_units.py makes one of any: what it rounds is not served."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_worker.engine.engine import ModelEngine
from gpu_worker.kernels.attention import choice
from gpu_worker.kernels.attention.equal_runs import KernelByLength, RunKernel
from gpu_worker.kernels.attention.written_out import onednn_products
from gpu_worker.model.loading import Model, load
from support.matrix_units import LEAST, emulate
from support.native import no_kernels
from support.onednn import needs_packed_layers
from support.tiny import CPU, DENSE, ask, dense_rows, encode

LEFT, RIGHT = (torch.randn(3, 64, 64, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "bmm": torch.bmm,
    "bmm into": lambda left, right: torch.bmm(left, right, out=torch.empty_like(left)),
    "matmul": torch.matmul,
    "baddbmm": lambda left, right: torch.baddbmm(left.new_empty(1), left, right, beta=0),
    "mm": lambda left, right: torch.stack([torch.mm(*pair) for pair in zip(left, right, strict=True)]),
    "linear": lambda left, right: torch.stack([F.linear(x, w.T) for x, w in zip(left, right, strict=True)]),
    "biased": lambda left, right: torch.stack(
        [F.linear(x, w.T, torch.zeros(64, dtype=x.dtype)) for x, w in zip(left, right, strict=True)]
    ),
    "einsum": lambda left, right: torch.einsum("hij,hjk->hik", left, right),
}

pytestmark = needs_packed_layers  # or oneDNN's operators are not there


@pytest.fixture
def units() -> Iterator[None]:
    held = emulate()
    yield
    held.clear()


def error(multiply: Callable[[Tensor, Tensor], Tensor]) -> float:
    """The largest of a product, as a share of its largest number."""
    expected = multiply(LEFT.double(), RIGHT.double())
    return float((multiply(LEFT, RIGHT) - expected).abs().max() / expected.abs().max())


@pytest.mark.usefixtures("units")
@pytest.mark.parametrize("multiply", PRODUCTS.values(), ids=PRODUCTS)
def test_factors_are_rounded_where_they_may_be(multiply: Callable[[Tensor, Tensor], Tensor]) -> None:
    """And nowhere else: what PyTorch does by itself is exact on every processor."""
    assert error(multiply) < choice.EXACT
    with onednn_products():
        assert error(multiply) > 50 * choice.EXACT
    assert error(multiply) < choice.EXACT


@pytest.mark.usefixtures("units")
def test_small_products_are_none_of_onednns() -> None:
    """PyTorch does not ask for them; one more multiplication, and it does."""
    thirds = torch.full((1, LEAST), 1 / 3)
    with onednn_products():
        assert torch.equal(torch.mm(thirds[:, :1], thirds), thirds * thirds[0, 0])
        assert not torch.equal(
            torch.mm(thirds[:, :1], torch.full((1, LEAST + 1), 1 / 3))[:, :-1], thirds * thirds[0, 0]
        )


@pytest.mark.usefixtures("units")
@pytest.mark.parametrize("head", [8, 64])
def test_the_load_notices(head: int) -> None:
    """oneDNN's way is neither measured nor served; the others are exact."""
    assert not choice.onednn_is_exact(head)
    assert choice.exact_kernels(torch.float32, head) == (RunKernel.POWERS, RunKernel.SOFTMAX, RunKernel.FUSED)
    assert RunKernel.ONEDNN not in choice.measured.__wrapped__(torch.float32, head, False, False).kernels


def rows(model: Model) -> np.ndarray:
    """Of a short text, a longer one and a long one."""
    assert not model.unpacked_reason
    texts = [np.arange(5, 5 + length, dtype=np.int32) for length in (3, 40, 300)]
    return dense_rows(ask(ModelEngine(model), encode(DENSE), texts))


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("name", ["random:tiny-bert", "random:tiny-deberta-v2"])
def test_what_is_served_with_them_is_right(name: str, kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of a processor without them, from texts that run among others."""
    if not kernels:
        no_kernels(monkeypatch)
    anew = choice.measured.__wrapped__
    monkeypatch.setattr(choice, "measured", lambda *_: KernelByLength((RunKernel.FUSED,)))
    expected = rows(load(name, CPU))
    monkeypatch.setattr(choice, "measured", anew)
    held = emulate()
    try:
        assert np.abs(rows(load(name, CPU)) - expected).max() < 1e-5
    finally:
        held.clear()


@pytest.mark.usefixtures("units")
@pytest.mark.parametrize("name", ["random:tiny-bert", "random:tiny-deberta-v2"])
def test_a_way_that_rounds_passes_no_gate(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: if the proof were wrong, PyTorch's own attention would serve."""
    no_kernels(monkeypatch)
    monkeypatch.setattr(choice, "measured", lambda *_: KernelByLength((RunKernel.ONEDNN,)))
    told = load(name, CPU).findings
    assert any("oneDNN" in line and "the model does not run by it as by its own" in line for line in told), told

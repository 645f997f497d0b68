"""Powers instead of softmax, oneDNN instead of PyTorch's choice: the same numbers, or not taken."""

from typing import Any

import pytest
import torch

from gpu_worker.kernels.attention import choice as attention_choice
from gpu_worker.kernels.attention import written_out
from gpu_worker.kernels.attention.equal_runs import EqualRuns, KernelByLength, RunKernel


@pytest.mark.parametrize("size", [0.01, 1.0, 40.0, 300.0, float("nan")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_powers_equal_softmax_whatever_the_scores(size: float, dtype: torch.dtype) -> None:
    """Also where powers of them are beyond the number format, above or below; numbers that are none stay none."""
    torch.manual_seed(0)
    scores = (torch.randn(1, 3, 5, 40) * size).to(dtype)
    scores[:, 1] -= 3 * size
    scores[:, 2, :, 7:] = float("-inf")
    values = torch.randn(1, 3, 40, 8).to(dtype)
    expected = written_out.SOFTMAX.apply(scores, values)
    found = written_out.POWERS.apply(scores * written_out.POWERS.unit, values)
    near = {torch.float32: 2e-6 * max(1.0, size), torch.bfloat16: 3e-2 * max(1.0, size)}[dtype]
    assert torch.allclose(found, expected, atol=near, equal_nan=True)


@pytest.mark.parametrize("shift", [-200.0, 200.0])
def test_powers_beyond_the_number_format_go_to_softmax(shift: float) -> None:
    """All scores of a row so far from zero that their powers are lost or infinite."""
    torch.manual_seed(0)
    scores, values = torch.randn(2, 1, 3, 20), torch.randn(2, 1, 20, 8)
    expected = written_out.SOFTMAX.apply(scores, values)
    found = written_out.POWERS.apply((scores + shift) * written_out.POWERS.unit, values)
    assert torch.allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_powers_are_for_processors_and_wide_exponents(dtype: torch.dtype) -> None:
    """float16 would lose them, and rounds scores: it has the fused kernel. A device would be waited for."""
    ways = attention_choice.measured(dtype, 16, False, False).kernels
    assert set(ways) == {RunKernel.FUSED} or dtype != torch.float16
    assert RunKernel.ONEDNN not in ways or dtype == torch.float32
    elsewhere = attention_choice.choose(torch.device("meta"), dtype, 16, causal=False, softcap=True, bias=False)
    assert isinstance(elsewhere, EqualRuns)
    assert elsewhere.kernels == KernelByLength((RunKernel.FUSED,))


def test_the_setting_for_onednn_is_put_back() -> None:
    """Also where an attention fails."""
    setting: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before, during = setting.fp32_precision, []

    def fail() -> None:
        with written_out.onednn_products():
            during.append(setting.fp32_precision)
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    assert during != [before]
    assert setting.fp32_precision == before

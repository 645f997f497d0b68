"""Which way attends on a processor: told by what each took for a few lengths."""

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from gpu_worker.kernels.attention import choice, equal_runs
from gpu_worker.kernels.attention.equal_runs import RunKernel
from gpu_worker.kernels.attention.interface import AttentionTerms

LENGTHS = len(choice.LENGTHS)


def shares(softmax: float = 1.0, fused: float = 1.0, own: float = 1.0) -> dict[RunKernel, float]:
    """Of one length; oneDNN is the usual way, `own` what powers with PyTorch's products take."""
    return {RunKernel.ONEDNN: 1.0, RunKernel.POWERS: own, RunKernel.SOFTMAX: softmax, RunKernel.FUSED: fused}


@pytest.mark.parametrize(
    ("told", "short", "long"),
    [
        ([shares()] * LENGTHS, RunKernel.ONEDNN, RunKernel.FUSED),
        ([shares(softmax=0.93)] * LENGTHS, RunKernel.ONEDNN, RunKernel.FUSED),
        ([shares(softmax=0.88)] * LENGTHS, RunKernel.SOFTMAX, RunKernel.FUSED),
        ([shares(own=0.7, softmax=0.8, fused=0.86)] * LENGTHS, RunKernel.POWERS, RunKernel.FUSED),
        ([shares(own=0.7, fused=0.9)] * LENGTHS, RunKernel.POWERS, RunKernel.POWERS),
        ([shares(fused=1.3)] * LENGTHS, RunKernel.ONEDNN, RunKernel.ONEDNN),
    ],
    ids=[
        "all alike",
        "a near tie",
        "ahead",
        "the furthest ahead",
        "clearly ahead of fused",
        "slow fused",
    ],
)
def test_the_usual_way_gives_place_to_what_is_ahead(
    told: list[dict[RunKernel, float]], short: RunKernel, long: RunKernel
) -> None:
    """Over all lengths up to the last bound; beyond it the fused kernel is the usual way."""
    ways = choice.decide(told)
    assert ways.bounds == choice.BOUNDS
    assert set(ways.kernels[:-1]) == {short}
    assert ways.kernels[-1] is long


def test_one_length_has_a_way_of_its_own_where_that_is_clearly_ahead() -> None:
    """By more than what makes a way the usual one."""
    near, clear = shares(fused=0.85), shares(fused=0.75)
    ways = choice.decide([near, clear, *[shares()] * (LENGTHS - 2)])
    assert ways.kernels == (RunKernel.ONEDNN, RunKernel.FUSED, *[RunKernel.ONEDNN] * (LENGTHS - 3), RunKernel.FUSED)


@pytest.mark.parametrize("exact", [False, True])
def test_onednn_is_measured_where_it_is_exact(monkeypatch: pytest.MonkeyPatch, exact: bool) -> None:
    """Else powers with PyTorch's own products are float32's usual way."""
    monkeypatch.setattr(choice, "onednn_is_exact", lambda head: exact)
    measured: list[list[RunKernel]] = []

    def alike(runs: Mapping[RunKernel, Callable[[], object]], rounds: int) -> dict[RunKernel, float]:
        measured.append(list(runs))
        return dict.fromkeys(runs, 1.0)

    monkeypatch.setattr(choice, "shortest_seconds", alike)
    usual = RunKernel.ONEDNN if exact else RunKernel.POWERS
    assert choice.measured.__wrapped__(torch.float32, 16, False, False).of(100) is usual
    assert len(measured) == 2 * LENGTHS  # one sequence, and several
    assert all(each[0] is usual and (RunKernel.ONEDNN in each) == exact for each in measured)


@pytest.mark.parametrize(("causal", "bias"), [(False, False), (True, False), (False, True)])
def test_what_is_measured_is_what_runs(monkeypatch: pytest.MonkeyPatch, causal: bool, bias: bool) -> None:
    """Causal layers, and those with a bias, are measured as such, by every way."""
    asked: list[tuple[bool, bool]] = []
    written, fused = equal_runs.written_out, equal_runs.fused

    def watched(attend: Callable[..., Tensor | None]) -> Callable[..., Tensor | None]:
        def run(query: Tensor, key: Tensor, value: Tensor, terms: AttentionTerms, *rest: object) -> Tensor | None:
            asked.append((terms.causal, terms.bias is not None))
            return attend(query, key, value, terms, *rest)

        return run

    monkeypatch.setattr(equal_runs, "written_out", watched(written))
    monkeypatch.setattr(equal_runs, "fused", watched(fused))
    choice.measured.__wrapped__(torch.float32, 16, causal, bias)
    assert len(asked) >= 2 * LENGTHS * 3 * choice.RUNS
    assert set(asked) == {(causal, bias)}

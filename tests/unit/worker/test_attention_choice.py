"""Which way attends on a processor: told by what each took for a few lengths."""

import random
from collections.abc import Callable, Mapping
from functools import partial

import pytest
import torch
from torch import Tensor

from gpu_worker.kernels.attention import choice, equal_runs
from gpu_worker.kernels.attention.equal_runs import RunKernel
from gpu_worker.kernels.attention.interface import AttentionTerms

LENGTHS = len(choice.LENGTHS)
VISITS, RUNS = choice.VISITS, choice.RUNS  # as a worker measures; while tests run they are fewer


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

    def alike(runs: Mapping[RunKernel, Callable[[], object]], rounds: int, clock: object) -> dict[RunKernel, float]:
        measured.append(list(runs))
        return dict.fromkeys(runs, 1.0)

    monkeypatch.setattr(choice, "shortest_seconds", alike)
    usual = RunKernel.ONEDNN if exact else RunKernel.POWERS
    assert choice.measured.__wrapped__(torch.float32, 16, False, False).of(100) is usual
    assert len(measured) == 2 * LENGTHS * choice.VISITS  # one sequence, and several
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
    assert len(asked) >= 2 * LENGTHS * 3 * choice.VISITS * choice.RUNS
    assert set(asked) == {(causal, bias)}


def test_bfloat16_stays_with_the_fused_kernel_unless_another_is_ahead() -> None:
    """A near tie with powers was decided by chance where processors have matrix units."""
    usual, *others = choice.exact_kernels(torch.bfloat16, 32)
    assert usual is RunKernel.FUSED
    near = {usual: 1.0} | dict.fromkeys(others, 0.93)
    assert set(choice.decide([near] * LENGTHS).kernels) == {RunKernel.FUSED}
    ahead = near | {RunKernel.POWERS: 0.6}
    assert set(choice.decide([ahead] * LENGTHS).kernels) == {RunKernel.POWERS}


class BusyMachine:
    """A clock, and runs that take their own time; while other work runs, 7 % of the time, up to four times as much."""

    def __init__(self, seed: int) -> None:
        self.now, self._draw, self._busy_until, self._times = 0.0, random.Random(seed), 0.0, 1.0

    def run(self, seconds: float) -> None:
        if self._draw.random() < 0.005:
            self._busy_until, self._times = self.now + self._draw.uniform(0.0, 0.03), self._draw.uniform(1.2, 4.0)
        self.now += seconds * (self._times if self.now < self._busy_until else self._draw.uniform(1.0, 1.02))

    def chosen(self, shares: Mapping[RunKernel, float]) -> tuple[RunKernel, ...]:
        """The kernels of a load. `shares`: what each kernel takes of a millisecond."""
        runs = {kernel: partial(self.run, share / 1e3) for kernel, share in shares.items()}
        sizes = [(length, count) for length in choice.LENGTHS for count in (1, 4)]
        return choice.decide(choice.time_shares(dict.fromkeys(sizes, runs), lambda: self.now)).kernels


CASES = {"near ties": shares(own=0.97, softmax=0.98, fused=1.0), "ahead": shares(own=1.5, softmax=0.6, fused=1.3)}


@pytest.mark.parametrize("told", CASES.values(), ids=CASES)
def test_loads_on_a_busy_machine_choose_alike(told: Mapping[RunKernel, float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is disturbed for a moment: a hundred loads make the choice of a quiet machine."""
    monkeypatch.setattr(choice, "VISITS", VISITS)
    monkeypatch.setattr(choice, "RUNS", RUNS)
    quiet = choice.decide([told] * LENGTHS).kernels
    assert {BusyMachine(seed).chosen(told) for seed in range(100)} == {quiet}


def test_a_single_visit_would_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A negative control: the same loads choose differently if each kernel runs once."""
    monkeypatch.setattr(choice, "VISITS", 1)
    monkeypatch.setattr(choice, "RUNS", 1)
    assert len({BusyMachine(seed).chosen(CASES["near ties"]) for seed in range(100)}) > 1

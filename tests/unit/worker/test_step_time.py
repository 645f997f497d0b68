"""How many tokens a step has on a processor: by what steps take, on fake machines; and what is timed."""

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from gpu_worker.device.placement import Placement
from gpu_worker.engine.engine import ModelEngine, ModelStepHandle
from gpu_worker.model.loading import Model, load
from gpu_worker.schedule.interface import JobSlice
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup import trials
from gpu_worker.startup.trials import (
    FEWEST,
    LONGEST,
    MOST,
    PAYS,
    find_step_times,
    try_step_times,
)
from gpu_worker.worker import step_of
from shared.errors import ModelRefused
from support.checked import checked
from support.random_models import random_model
from support.tiny import CPU

USUAL, BOUND = 2048, 0.2


def machine(speed: float, overhead: float = 0.0) -> Callable[[int], float]:
    """A step costs `overhead` seconds beside its tokens."""
    return lambda tokens: overhead + tokens / speed


@cache
def model(name: str = "tiny-bert") -> Model:
    return load(random_model(name), CPU)


@pytest.mark.parametrize(
    ("speed", "overhead", "tokens"),
    [
        (100_000, 0.0, 2048),
        (100_000, 0.005, 4096),
        (120_000, 0.02, 16384),
        (60_000, 0.015, 8192),
        (30_000, 0.02, 4096),
        (15_000, 0.02, 2048),
        (500, 0.1, 2048),
    ],
    ids=["nothing pays", "twice pays", "all pays", "three fit", "two fit", "the usual fits", "too slow for any"],
)
def test_a_step_has_as_many_tokens_as_pay_within_the_bound(speed: float, overhead: float, tokens: int) -> None:
    """The usual number where no larger one is clearly faster by the token, or none ends in time."""
    assert find_step_times(machine(speed, overhead), USUAL, BOUND).tokens == tokens


@given(speed=st.floats(100, 1e7), overhead=st.floats(0, 1), bound=st.floats(0.001, 10))
def test_what_is_chosen_pays_and_ends_in_time(speed: float, overhead: float, bound: float) -> None:
    """Powers of two from the usual number to the most; sizes are timed from the fewest tokens on, none far too long."""
    measure, ran = machine(speed, overhead), set[int]()

    def seconds(tokens: int) -> float:
        ran.add(tokens)
        return measure(tokens)

    chosen = find_step_times(seconds, USUAL, bound).tokens
    assert chosen in (2048, 4096, 8192, 16384)
    if chosen > USUAL:
        assert measure(chosen) <= bound
        assert chosen / measure(chosen) >= USUAL / measure(USUAL) / PAYS
    sizes = sorted(ran)
    assert sizes[0] == FEWEST
    assert all(after == 2 * before for before, after in pairwise(sizes))
    assert all(tokens / speed <= min(bound, LONGEST) for tokens in sizes[1:])
    assert sizes[-1] <= MOST


@pytest.mark.parametrize(("overhead", "tokens"), [(0.001, 2048), (0.02, 8192)], ids=["a near tie", "ahead"])
def test_loads_on_a_busy_machine_choose_alike(overhead: float, tokens: int) -> None:
    """A tenth of the steps take up to three times as long, some look short: of a thousand loads few are led astray."""
    honest = machine(80_000, overhead)

    def load_on(seed: int) -> int:
        draw = random.Random(seed)

        def times() -> float:
            chance = draw.random()
            return draw.uniform(1.1, 3.0) if chance < 0.1 else 0.85 if chance > 0.97 else draw.uniform(1.0, 1.01)

        return find_step_times(lambda size: honest(size) * times(), USUAL, BOUND).tokens

    assert sum(load_on(seed) != tokens for seed in range(1000)) <= 30


def test_a_real_engine_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps have the tokens that they are timed for."""
    ticks = iter(range(10**6))
    launched, launch = list[int](), ModelEngine.launch

    def watched(engine: ModelEngine, slices: Sequence[JobSlice]) -> ModelStepHandle:
        launched.append(slices[0].tokens)
        return launch(engine, slices)

    monkeypatch.setattr(ModelEngine, "launch", watched)
    monkeypatch.setattr(trials.time, "thread_time", lambda: next(ticks) / 16)  # every step takes as long
    times = try_step_times(ModelEngine(model("tiny-token-classifier")), BOUND)
    assert times.tokens == MOST
    assert list(times.seconds) == [256, 512, 1024, 2048, 4096, 8192, 16384]
    assert max(launched) == MOST


@pytest.mark.parametrize(
    ("overhead", "most", "tokens"),
    [(0.0, 0, 4096), (0.002, 0, 8192), (0.02, 0, 16384), (0.02, 8192, 8192), (0.0, 1024, 1024), (0.0, 64, 64)],
    ids=["nothing pays", "twice pays", "all pays", "memory allows less", "far less", "less than is timed"],
)
def test_an_accelerator_takes_the_smallest_step_that_pays(
    overhead: float, most: int, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that it computes one step while the host is busy with another; within its memory, without a bound of time."""
    timed = list[int]()

    def seconds(engine: ModelEngine, clock: object, size: int) -> float:
        timed.append(size)
        return overhead + size / 500_000

    monkeypatch.setattr(trials, "_seconds", seconds)
    monkeypatch.setattr(Placement, "device_memory", object())
    monkeypatch.setattr(Placement, "step_tokens", 16_384)
    assert try_step_times(ModelEngine(model()), inf, most).tokens == tokens
    assert max(timed, default=0) <= (most or 16_384)


async def test_a_model_whose_step_fails_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line; the log has the error with its trace."""

    def fail(*_: object) -> None:
        raise RuntimeError("a bug\nof two lines")

    monkeypatch.setattr(ModelEngine, "_compute", fail)
    settings = WorkerSettings.read(["--model", "tiny"])
    with ThreadPoolExecutor(1) as device, capture_logs() as lines, pytest.raises(ModelRefused) as refused:
        await step_of(model(), device, settings)
    assert str(refused.value) == "a trial step fails: RuntimeError: a bug"
    assert [(line["event"], str(line["exc_info"])) for line in lines] == [("step failed", "a bug\nof two lines")]


async def test_the_worker_serves_with_what_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the thread that computes, within the user's bound."""
    made, threads = model(), list[str]()

    def seconds(engine: ModelEngine, clock: object, tokens: int) -> float:
        threads.append(threading.current_thread().name)
        return 0.02 + tokens / 80_000

    monkeypatch.setattr(trials, "_seconds", seconds)

    async def tokens(*arguments: str) -> int:
        settings = WorkerSettings.read(["--model", "tiny", *arguments])
        with ThreadPoolExecutor(1, "device") as device:
            _, times = await step_of(made, device, settings)
            return times.tokens

    assert await tokens() == 8192
    assert await tokens("--step-milliseconds", "100") == 4096
    assert {name.partition("_")[0] for name in threads} == {"device"}
    threads.clear()
    assert await tokens("--step-milliseconds", "0") == 2048
    assert threads == []


def test_check_prints_what_was_timed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """And the tokens of a step that came of it."""
    monkeypatch.setattr(trials, "_seconds", lambda engine, clock, tokens: 0.02 + tokens / 40_000)
    monkeypatch.setattr("gpu_worker.worker.load_model", lambda settings: model())
    assert checked("tiny") == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "steps, timed 2048 tokens in 71 ms, 4096 tokens in 122 ms" in lines
    assert "step, at most 4096 tokens" in lines

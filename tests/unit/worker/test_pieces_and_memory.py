"""Long texts in pieces on a real engine: memory that runs out in the middle of a text, and caches that are dropped."""

import gc
import random
import weakref
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gpu_worker.engine.engine import ModelEngine
from gpu_worker.engine.jobs import job as job_module
from gpu_worker.engine.jobs.job import QueryRows
from gpu_worker.engine.jobs.units import PieceLimits
from gpu_worker.model.loading import load
from gpu_worker.model.native.native_model import NativeModel
from gpu_worker.ragged.pieces import KEPT_STATES, SequenceCache
from gpu_worker.schedule.interface import JobSlice, OutOfMemory, StepHandle
from gpu_worker.schedule.scheduler import Collect, Idle, Launch, Scheduler, Wait
from gpu_worker.schedule.steps import MOST_UNDER_WAY, EndedJob
from harness.synchronous_driver import advance, until_idle
from shared.errors import DeadlineExceeded, Overloaded, WorkerUnavailable
from shared.jobs import Job, JobResult, RaggedTokens
from shared.vectors import Layout, ScoringMethod
from support import parity
from support.architectures import MIXED, assert_near, sentences, theirs, write
from support.in_pieces import cut_texts
from support.parity import Expected, Tables, Texts, assert_parity
from support.tiny import CPU, DENSE, MULTI, dense_rows, encode, random_ids, raw, score

pytestmark = pytest.mark.usefixtures("one_thread")
LATE = ScoringMethod.LATE_INTERACTION
CHUNK, CAPACITY = 16, 450
"""Most tokens of a piece, and those whose keys and values are kept: a long text of `parity.LONG`, and a short one."""


class Crowded:
    """An engine whose steps lack memory at random, when they are launched, computed or collected.

    Steps of one unit never do: whoever asked for them would be told that they never fit.
    """

    def __init__(self, engine: ModelEngine, seed: int, often: float, ways: int = 3) -> None:
        """`ways`: 2 for failures at launch and at collection only."""
        self._engine, self._chance, self._often, self._ways = engine, random.Random(seed), often, ways
        self.failures = 0

    def open(self, job: Job) -> Any:
        return self._engine.open(job)

    def reclaim(self) -> None:
        self._engine.reclaim()

    def launch(self, slices: Sequence[JobSlice]) -> StepHandle:
        if sum(part.units for part in slices) == 1 or self._chance.random() > self._often:
            return self._engine.launch(slices)
        self.failures += 1
        match self._chance.randrange(self._ways):
            case 0:
                raise OutOfMemory
            case 1:
                return Late(self._engine.launch(slices))
        with pytest.MonkeyPatch.context() as patch:  # in a layer: earlier layers have kept their keys, later ones not
            layer, run, left = SequenceCache.layer, NativeModel._run, self._chance.randint(0, 8)
            keep = SequenceCache.keep_state

            def fail_in_the_end() -> None:
                nonlocal left
                left -= 1
                if left < 0:
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

            def extended(cache: SequenceCache, *states: Any) -> Any:
                fail_in_the_end()
                return layer(cache, *states)

            def joined(native: NativeModel, *arguments: Any) -> Tensor:
                rows = run(native, *arguments)
                fail_in_the_end()  # all layers that run together have kept their keys
                return rows

            def kept(cache: SequenceCache, *state: Any) -> None:
                keep(cache, *state)
                fail_in_the_end()

            patch.setattr(SequenceCache, "layer", extended)
            patch.setattr(SequenceCache, "keep_state", kept)
            patch.setattr(NativeModel, "_run", joined)
            return self._engine.launch(slices)


class Late:
    """A step whose lack of memory shows when it is collected."""

    def __init__(self, handle: StepHandle) -> None:
        self._handle, self.arrived, self.shared_tokens = handle, handle.arrived, 0

    def collect(self) -> None:
        self._handle.arrived.exception()
        raise OutOfMemory


def run_two_under_way(scheduler: Scheduler, chance: random.Random) -> list[EndedJob]:
    """Answers all jobs; mostly a second step is launched before the first is collected, although that has arrived."""
    ended: list[EndedJob] = []
    while not isinstance(action := scheduler.next_action(), Idle):
        assert not isinstance(action, Wait)
        if isinstance(action, Launch) and (scheduler.older_step is None or chance.random() < 0.8):
            planned = scheduler.plan_step()
            if planned is not None:
                scheduler.launch_step(planned)
        elif isinstance(action, Collect) or scheduler.older_step is not None:
            ended += scheduler.end_step(scheduler.collect_step()).jobs
    return ended


@pytest.mark.parametrize("often", [0.1, 0.5])
@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("tiny-qwen3", "vectors"),
        ("tiny-mistral", "vectors"),
        pytest.param("tiny-gemma2", "vectors", marks=pytest.mark.slow),
        ("tiny-qwen3", "yes-no"),
        pytest.param("tiny-qwen3", "token labels", marks=pytest.mark.slow),
    ],
)
def test_memory_that_runs_out_in_the_middle_changes_no_number(
    tables: Tables, name: str, output: str, often: float
) -> None:
    """Results are those of transformers, wherever steps failed; all room comes back."""
    engine, texts = tables.engine(name, output, "float32"), Texts.of(name, output, "float32")
    expected = Expected.of(tables, name, output, "float32")
    failures = 0
    with cut_texts(engine, longest=CHUNK, cache_bytes=CAPACITY):
        for seed in range(4):
            crowded = Crowded(engine, seed, often)

            def compute(
                _: ModelEngine, jobs: Sequence[Job], crowded: Crowded = crowded, seed: int = seed
            ) -> list[JobResult]:
                scheduler = Scheduler(crowded, step_tokens=64, queued_tokens=10**6, cache_bytes=CAPACITY)
                for job in jobs:
                    scheduler.submit(job)
                outcomes = {ended.id: ended.outcome for ended in run_two_under_way(scheduler, random.Random(seed))}
                assert (scheduler.room.taken, scheduler.room.waiting, scheduler.queued) == (0, 0, (0, 0))
                return [outcome for job in jobs if isinstance(outcome := outcomes[job.id], JobResult)]

            numbers = parity.ours(engine, output, texts, compute)
            assert_parity(numbers, expected, "float32")
            failures += crowded.failures
    assert failures


@pytest.mark.parametrize("kind", ["lfm2", "qwen3_5_text", "bamba"])
def test_no_state_is_lost_where_memory_runs_out(kind: str, tmp_path: Path) -> None:
    """Pieces are computed again from the state before them, also behind one that was cut in another place."""
    write(tmp_path, kind)
    expected, ids = theirs(tmp_path, sentences(MIXED[:9]))
    model = load(str(tmp_path), CPU)
    engine, failures = ModelEngine(model), 0
    jobs = [Job(id=start, work=raw(DENSE), tokens=RaggedTokens.of(ids[start::3])) for start in range(3)]
    with cut_texts(engine, longest=CHUNK, token_bytes=model.token_bytes, state_bytes=model.state_bytes):
        for seed in range(3):
            crowded = Crowded(engine, seed, 0.3)
            scheduler = Scheduler(crowded, step_tokens=64, queued_tokens=10**6)
            for job in jobs:
                scheduler.submit(job)
            for ended in run_two_under_way(scheduler, random.Random(seed)):
                assert isinstance(ended.outcome, JobResult)
                assert_near(kind, dense_rows(ended.outcome), expected[ended.id :: 3])
            failures += crowded.failures
    assert failures
    assert KEPT_STATES == MOST_UNDER_WAY + 1


@pytest.fixture
def caches(monkeypatch: pytest.MonkeyPatch) -> "weakref.WeakSet[SequenceCache]":
    """All caches of sequences that are alive."""
    alive: weakref.WeakSet[SequenceCache] = weakref.WeakSet()

    class Watched(SequenceCache):
        def __init__(self, length: int, *beginning: Any) -> None:
            super().__init__(length, *beginning)
            alive.add(self)

    monkeypatch.setattr(job_module, "SequenceCache", Watched)
    return alive


def random_job(chance: random.Random, number: int) -> Job:
    """A job of some kind, with a few texts, some of them long."""
    remaining = chance.choice([None, None, 3.0])
    count = chance.randint(2, 4)
    texts = random_ids([chance.randint(1, chance.choice([10, 150])) for _ in range(count)], seed=number)
    work = chance.choice(
        [encode(DENSE, MULTI), score(LATE, 1), score(ScoringMethod.DENSE, 2 if count > 2 else 1)]
        + ([score(LATE, count // 2, Layout.PAIRS)] if count % 2 == 0 else [])
    )
    return Job(id=number, work=work, tokens=RaggedTokens.of(texts), remaining=remaining)


@pytest.mark.parametrize("count", [100, pytest.param(500, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "often"), [("tiny-qwen3", 0.0), ("tiny-qwen3", 0.2), ("tiny-mistral", 0.2)])
def test_no_cache_outlives_its_sequence(
    tables: Tables, device: Executor, caches: "weakref.WeakSet[SequenceCache]", count: int, name: str, often: float
) -> None:
    """Random jobs, of which many are cancelled or late in whatever state they are, a whole frontend's as well, and all
    of which end once or twice, as in a drain; no collection of cycles is needed."""
    model, chance, now = tables.engine(name, "vectors", "float32").model, random.Random(count), 0.0
    limits = PieceLimits(longest=CHUNK, cache_bytes=CAPACITY)
    threaded = ModelEngine(model, device if not often else None, limits=limits)
    crowded = Crowded(threaded, 0, often)
    scheduler = Scheduler(crowded, step_tokens=64, queued_tokens=10**6, cache_bytes=CAPACITY, clock=lambda: now)
    outcomes = Counter[type]()
    unanswered: set[int] = set()
    most = number = 0
    gc.collect()
    gc.disable()
    try:
        while number < count or unanswered:
            if number < count and chance.random() < 0.4:
                number += 1
                with suppress(Overloaded):  # an answer in time is not to be expected
                    scheduler.submit(random_job(chance, number))
                    unanswered.add(number)
            if unanswered and chance.random() < 0.15:
                lost = set(unanswered) if chance.random() < 0.03 else {chance.choice(sorted(unanswered))}
                for identity in lost:
                    scheduler.cancel(identity)
                unanswered -= lost
            now += 5.0 if chance.random() < 0.05 else 0.05
            ended = (
                scheduler.drop_all(WorkerUnavailable("shutting down"))
                if chance.random() < 0.005
                else advance(scheduler)
            )
            outcomes.update(type(answer.outcome) for answer in ended)
            unanswered -= {answer.id for answer in ended}
            most = max(most, len(caches))
            # Those of a step that is under way may have been cancelled; besides them there is no more than room.
            assert scheduler.room.taken <= CAPACITY
        assert list(until_idle(scheduler)) == []
        device.submit(int).result()  # a thread holds what it computed last until it has returned from it
        del ended
        assert set(outcomes) <= {JobResult, DeadlineExceeded, WorkerUnavailable}
        assert outcomes[JobResult] > 10
        assert outcomes[DeadlineExceeded] or not often  # in threads, jobs may be done sooner
        assert most > 1
        assert len(caches) == 0
    finally:
        gc.enable()
    assert (scheduler.room.taken, scheduler.room.waiting, scheduler.queued) == (0, 0, (0, 0))


@pytest.mark.parametrize("begin", [0, 60], ids=["alone", "forks"])
def test_texts_keep_no_more_than_their_room(
    tables: Tables, device: Executor, caches: "weakref.WeakSet[SequenceCache]", begin: int
) -> None:
    """Computed in a thread of their own, by steps of which many fail, two under way; after each action. Also texts of a
    job that take their first tokens from each other's caches."""
    model = tables.engine("tiny-mistral", "vectors", "float32").model
    token_bytes = model.token_bytes
    limits = PieceLimits(longest=CHUNK, cache_bytes=CAPACITY * token_bytes, token_bytes=token_bytes, shares=begin > 0)
    engine = ModelEngine(model, device, limits=limits)
    crowded = Crowded(engine, 0, 0.5, ways=2)
    scheduler = Scheduler(crowded, step_tokens=64, queued_tokens=10**6, cache_bytes=limits.cache_bytes)
    lengths = [46, 5, 90, 40, 400, 150, 3, 75, 225, 20, 97]
    jobs = [random_ids([length], seed=number) for number, length in enumerate(lengths)]
    if begin:
        (first,), rests = random_ids([begin], seed=50), random_ids([10, 25, 3], seed=51)
        jobs += [[[*first, *rest] for rest in rests]] * 3
    for number, texts in enumerate(jobs):
        scheduler.submit(Job(id=number, work=encode(DENSE), tokens=RaggedTokens.of(texts)))
    ended, fullest = list[EndedJob](), 0
    while not isinstance(scheduler.next_action(), Idle):
        ended += advance(scheduler)
        device.submit(int).result()  # the device's thread has done what was launched
        held = sum(cache.bytes for cache in caches)
        assert held <= scheduler.room.taken
        fullest = max(fullest, held)
    assert {answer.id for answer in ended if isinstance(answer.outcome, JobResult)} == set(range(len(jobs)))
    assert crowded.failures
    assert (engine.shared_tokens > 0) == (begin > 0)
    assert fullest > CAPACITY * token_bytes // 2
    assert (scheduler.room.taken, len(caches)) == (0, 0)


def test_rows_of_a_query_that_is_computed_again_replace_the_first() -> None:
    """Also where they were joined with others before: what a failed step left out made them."""
    rows = QueryRows()
    rows.add_queries(np.array([0, 1]), [torch.full((1, 2), float("nan")), torch.ones(1, 2)])
    assert torch.isnan(rows.joined()[1]).any()
    rows.add_queries(np.array([0]), [torch.zeros(1, 2)])
    numbers, joined = rows.joined()
    assert numbers.tolist() == [0, 1]
    assert joined.tolist() == [[0.0, 0.0], [1.0, 1.0]]

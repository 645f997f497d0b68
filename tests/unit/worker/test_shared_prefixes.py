"""Texts that begin alike are computed once, and give what each gives by itself."""

import random
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gpu_worker.device.transfer import Upload
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.engine.jobs.job import TextJob, by_length
from gpu_worker.engine.jobs.units import FAMILY_ROOM, SHARED_COST, PieceLimits
from gpu_worker.engine.step.sequences import Sequences
from gpu_worker.engine.step.sharing import LEAST, families, shared_with_previous
from gpu_worker.engine.step.step import Step
from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.schedule.fair_queue import FairQueue
from gpu_worker.schedule.interface import JobSlice
from gpu_worker.schedule.load import LATEST_WEIGHT
from gpu_worker.schedule.scheduler import Scheduler
from harness.synchronous_driver import until_idle
from shared.jobs import Classify, Job, JobResult, Priority, RaggedTokens
from support.every_kind import assert_alike, assert_same_bits, vector_engine, vector_jobs
from support.in_pieces import cut_texts, run_in_steps
from support.native import LIBRARY, needs_kernels
from support.parity import Tables
from support.tiny import MULTI, encode, random_ids, raw, run

pytestmark = pytest.mark.usefixtures("one_thread")
PREFIX = random_ids([40], seed=9)[0]


def family(chance: random.Random, count: int, longest: int, seed: int) -> list[list[int]]:
    """Texts of at most `longest` tokens, each of which begins as a random part of one before it and goes on by itself,
    or not at all."""
    texts = random_ids([chance.randint(1, longest)], seed=seed)
    for number in range(1, count):
        other = chance.choice(texts)
        begin = other[: chance.randint(0, len(other))]
        (rest,) = random_ids([chance.randint(0 if begin else 1, longest)], seed=1000 * seed + number)
        texts.append((begin + rest)[:longest])
    return texts


def shared_prefixes(engine: ModelEngine, chunk: int = 0, together: int = 0) -> AbstractContextManager[None]:
    """Texts of the engine's jobs share first tokens for a while."""
    assert not engine.model.unshared
    token_bytes = engine.model.token_bytes
    return cut_texts(engine, longest=chunk, token_bytes=token_bytes, shares=True, together=together)


def by_themselves(engine: ModelEngine, jobs: Sequence[Job]) -> list[JobResult]:
    """Each job in a step of its own, whose texts share nothing."""
    return [result for job in jobs for result in run(engine, [job])]


def families_of(seed: int) -> list[Job]:
    """Jobs of every kind, over texts that begin alike."""
    chance = random.Random(seed)
    return vector_jobs(family(chance, 9, 150, seed), family(chance, 3, 60, seed), family(chance, 6, 150, seed + 1))


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "splade"),
    [
        ("tiny-qwen3", True),
        ("tiny-gemma2", False),
        pytest.param("tiny-mistral", False, marks=pytest.mark.slow),
        pytest.param("tiny-gemma3", True, marks=pytest.mark.slow),
        pytest.param("tiny-llama", False, marks=pytest.mark.slow),
    ],
)
def test_vectors_and_scores_of_texts_that_begin_alike(name: str, splade: bool, dtype: str) -> None:
    """Every pooling, means without prompts, token rows, sparse weights, and all methods of scoring; whole and beside
    pieces, with groups of heads, windows and softcaps, in steps of any jobs."""
    engine = vector_engine(name, dtype, splade)
    for seed in range(2):
        jobs = families_of(seed)
        expected = by_themselves(engine, jobs)
        for chunk, together in ((0, 0), (0, 200), (64, 64)):
            before = engine.shared_tokens
            with shared_prefixes(engine, chunk, together):
                assert_alike(run(engine, jobs), expected, dtype)
                assert_alike(run_in_steps(engine, jobs, seed, most_units=8), expected, dtype)
            assert engine.shared_tokens > before


@pytest.mark.parametrize(
    ("output", "work"),
    [("labels", Classify()), ("token labels", Classify(tokens=True)), ("yes-no", Classify())],
    ids=["texts", "tokens", "yes or no"],
)
def test_logits_of_texts_that_begin_alike(tables: Tables, output: str, work: Classify) -> None:
    """As a reranker's do: its prompt, one query, and then a document and the end of the prompt."""
    engine, documents = tables.engine("tiny-qwen3", output, "float32"), random_ids([30, 1, 7, 16, 30, 90], seed=4)
    texts = [[*PREFIX, *document, *PREFIX[:5]] for document in documents]
    jobs = [Job(id=1, work=work, tokens=RaggedTokens.of(texts)), Job(id=2, work=work, tokens=RaggedTokens.of(texts))]
    expected = by_themselves(engine, jobs)
    before = engine.shared_tokens
    with shared_prefixes(engine):
        assert_alike(run(engine, jobs), expected, "float32")
    assert engine.shared_tokens - before >= (2 * len(documents) - 1) * len(PREFIX)


@needs_kernels
@pytest.mark.parametrize("dtype", sorted(str(dtype)[6:] for dtype in LIBRARY.formats))
@pytest.mark.parametrize("name", ["tiny-qwen3", pytest.param("tiny-gemma2", marks=pytest.mark.slow)])
def test_same_bits_whatever_texts_share(name: str, dtype: str) -> None:
    """What `bitwise_invariant` promises does not depend on which text a token was computed with."""
    engine, jobs = vector_engine(name, dtype, splade=False), families_of(3)
    assert not engine.model.other_bits
    expected = by_themselves(engine, jobs)
    for chunk in (0, 32):
        with shared_prefixes(engine, chunk, together=128):
            assert_same_bits(run(engine, jobs), expected)
            assert_same_bits(run_in_steps(engine, jobs, seed=1, most_units=5), expected)


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-mistral"])
def test_long_texts_that_begin_alike_are_computed_once(name: str) -> None:
    """A text in pieces begins where it parts from the one before, whose key slots it attends to; they have room
    together, for each token once, and all of it is given back. Mistral's windows of 16 tokens do not reach the first
    slots."""
    engine = vector_engine(name, "float32", True)
    (begin,), rests = random_ids([90], seed=7), random_ids([0, 40, 100], seed=8)
    job = Job(id=1, work=raw(MULTI), tokens=RaggedTokens.of([[*begin, *rest] for rest in rests]))
    expected = by_themselves(engine, [job])
    with shared_prefixes(engine, chunk=32):
        before, opened = engine.shared_tokens, engine.open(job)
        assert (sum(room > 0 for room in opened.room), sum(opened.room)) == (1, 0)
        assert max(opened.room) == (90 + sum(map(len, rests))) * engine.limits.token_bytes
        assert sum(opened.costs) == 90 + 40 + 100 + 2 * -(-90 // SHARED_COST)
        for seed in range(4):
            assert_alike(run_in_steps(engine, [job], seed), expected, "float32")
        assert engine.shared_tokens - before == 4 * (90 + 90)


def test_long_texts_share_no_more_than_there_is_room_for() -> None:
    """Their rooms are held together, so they may take a part of all room only; nor do they for a small part of each."""
    engine = vector_engine("tiny-qwen3", "float32", True)
    (begin,), rests = random_ids([90], seed=7), random_ids([10, 10, 10, 290], seed=8)
    job = Job(id=1, work=raw(MULTI), tokens=RaggedTokens.of([[*begin, *rest] for rest in rests]))
    of_two = (100 + 10) * engine.model.token_bytes
    with shared_prefixes(engine, chunk=32):
        engine.cut_texts(replace(engine.limits, cache_bytes=FAMILY_ROOM * of_two))
        opened = engine.open(job)
    begun: dict[int, int] = {}
    for unit in range(len(opened.costs)):
        part = opened.selection(unit, unit + 1)
        begun.setdefault(int(part.numbers[0]), int(part.starts[0]))
    assert sorted(begun.values()) == [0, 0, 0, 90]
    assert sum(room > 0 for room in opened.room) == 3


def test_texts_of_two_callers_share_nothing() -> None:
    """How long a call takes tells its caller nothing of what others send."""
    engine, text = vector_engine("tiny-qwen3", "float32", True), RaggedTokens.of([PREFIX])
    jobs = [Job(id=number, work=raw(MULTI), tokens=text, key=key) for number, key in enumerate(["a", "b", "a"])]
    with shared_prefixes(engine):
        before = engine.shared_tokens
        run(engine, jobs[:2])
        assert engine.shared_tokens == before
        run(engine, jobs)
        assert engine.shared_tokens == before + len(PREFIX) - 1


class _Watched:
    """An encoder that is watched. Runs out of memory `failing` times where a batch has followers."""

    def __init__(self, encoder: Encoder, failing: int = 0) -> None:
        self._encoder, self._failing = encoder, failing
        self.ran: list[bool] = []
        """Whether each batch that it ran had followers."""

    def __getattr__(self, name: str) -> object:
        return getattr(self._encoder, name)

    def __call__(self, batch: RaggedBatch) -> Tensor:
        self.ran.append(bool(batch.pieces))
        if batch.pieces and self._failing:
            self._failing -= 1
            raise MemoryError
        return self._encoder(batch)


@pytest.mark.parametrize("failing", [1, 3])
def test_a_step_that_runs_out_of_memory_is_computed_in_halves(failing: int) -> None:
    """A text whose leader is in no step any more is computed by itself. What the failed step spared does not count."""
    engine, texts = vector_engine("tiny-qwen3", "float32", True), RaggedTokens.of([PREFIX] * 8)
    jobs = [Job(id=number, work=raw(MULTI), tokens=texts) for number in (1, 2)]
    expected = by_themselves(engine, jobs)
    encoder = _Watched(engine.model.encoder, failing)
    model = replace(engine.model, encoder=cast(Encoder, encoder))
    failed = ModelEngine(model, limits=PieceLimits(shares=True))
    scheduler = Scheduler(failed, step_tokens=1024, queued_tokens=4096)
    for job in jobs:
        scheduler.submit(job)
    answers = {answer.id: answer.outcome for answer in until_idle(scheduler)}
    assert_alike([answers[job.id] for job in jobs], expected, "float32")
    assert sum(encoder.ran) == failing + {1: 2, 3: 4}[failing]
    assert failed.shared_tokens == {1: 14, 3: 12}[failing] * (len(PREFIX) - 1)


def test_texts_of_two_adapters_share_nothing() -> None:
    """Nor do those with an unattended tail: their rows differ from the first layer on."""
    device, tokens = torch.device("cpu"), RaggedTokens.of([PREFIX])
    job = Job(id=1, work=Classify(), tokens=tokens)
    tail = replace(job, unattended_tails=(2,))
    for pair, adapters, spared in (
        ((job, job), (0, 0), len(PREFIX) - 1),
        ((job, job), (1, 1), len(PREFIX) - 1),
        ((job, job), (1, 2), 0),
        ((job, job), (0, 1), 0),
        ((job, tail), (0, 0), 0),
        ((tail, tail), (0, 0), 0),
    ):
        sequences = [Sequences(asked) for asked in pair]
        for sequence, adapter in zip(sequences, adapters, strict=True):
            sequence.adapter = adapter
        parts = [TextJob(text, by_length(text), PieceLimits(shares=True)).selection(0, 1) for text in sequences]
        assert Step.pack(parts, device, None, None, Upload(device), shares=True).shared_tokens == spared


def test_texts_that_begin_alike_are_served_together_and_cost_less() -> None:
    """The shortest text of a family says when it is served; what others share costs a small part of what it would where
    no step has them apart, and else all of it."""
    engine = vector_engine("tiny-qwen3", "float32", True)
    other, rest = random_ids([45, 30], seed=6)
    job = Job(id=1, work=encode(MULTI), tokens=RaggedTokens.of([[*PREFIX, *rest], other, PREFIX]))
    for together, costs, spared in ((0, [40, 70, 45], []), (74, [40, 70, 45], []), (75, [75, 45], [35, 0])):
        with shared_prefixes(engine, together=together):
            opened = engine.open(job)
            parts = [opened.selection(unit, unit + 1) for unit in range(len(opened.costs))]
        assert [number for part in parts for number in part.numbers.tolist()] == ([0, 2, 1] if spared else [2, 0, 1])
        assert (list(opened.costs), list(opened.spared)) == (costs, spared)
        assert [part.joined for part in parts] == [number > 0 for number in spared] or not spared


BUDGET = 2048


@pytest.mark.parametrize("together", [0, 256, 4096])
def test_a_step_computes_no_more_than_its_budget(together: int) -> None:
    """Jobs are served in turns, which end and begin anew within families: what a step computes costs as much at least.
    Where shared tokens cost as much as others, heads get no more tokens than the budget either; and where they cost
    less, a step spares much of what it would take."""
    chance, device, queue = random.Random(7), torch.device("cpu"), FairQueue[TextJob](quantum=BUDGET // 8)
    total = 0
    for number in range(24):
        begin, *rests = random_ids([chance.randint(20, 1500), *[chance.randint(1, 40)] * chance.randint(1, 12)], number)
        tokens = RaggedTokens.of([[*begin, *rest] for rest in rests])
        sequences = Sequences(Job(id=number, work=Classify(), tokens=tokens, key=f"{number // 2}"))
        opened = TextJob(sequences, by_length(sequences), PieceLimits(shares=True, together=together))
        queue.add_job(opened, opened.costs, key=sequences.key)
        total += tokens.total
    steps = 0
    while queue.waiting_tokens:
        taken = queue.next_step(BUDGET)
        parts = [job.selection(units.start, units.stop) for job, units in taken.items()]
        step = Step.pack(parts, device, None, None, Upload(device), shares=True)
        slices = [JobSlice(job=job, start=units.start, stop=units.stop) for job, units in taken.items()]
        cost = sum(part.tokens for part in slices)
        assert step.batch is not None
        assert step.batch.total <= cost <= max(BUDGET, max(max(job.costs) for job in taken))
        assert step.texts.total == cost + sum(part.spared for part in slices)
        assert step.batch.total == step.texts.total - step.shared_tokens
        steps += 1
    assert steps * BUDGET < 0.5 * total if together > BUDGET else steps * BUDGET > total


@pytest.mark.parametrize(("together", "other", "spared"), [(0, 120, 0), (0, 110, 20), (64, 120, 20)])
def test_a_step_shares_where_that_spares_an_eighth_or_is_counted_on(together: int, other: int, spared: int) -> None:
    """To share takes copies of all that the step has. Here 20 tokens of 160 and more are shared."""
    begin, device = PREFIX[:20], torch.device("cpu")
    alike = RaggedTokens.of([[*begin, *rest] for rest in random_ids([10, 10], seed=3)])
    sequences = [
        Sequences(Job(id=number, work=Classify(), tokens=tokens))
        for number, tokens in enumerate([alike, RaggedTokens.of(random_ids([other - 10], seed=4))])
    ]
    jobs = [TextJob(text, by_length(text), PieceLimits(shares=True, together=together)) for text in sequences]
    parts = [job.selection(0, len(job.costs)) for job in jobs]
    assert Step.pack(parts, device, None, None, Upload(device), shares=True).shared_tokens == spared
    assert Step.pack(parts, device, None, None, Upload(device)).shared_tokens == 0


def test_frontends_are_told_a_load_in_tokens_of_texts() -> None:
    """They count all of them, and would refuse what waits for a unit of many texts as if it cost them all."""
    engine = vector_engine("tiny-qwen3", "float32", True)
    plain, alike = (
        [Job(id=1, work=encode(MULTI), tokens=RaggedTokens.of(texts))] for texts in ([PREFIX], [PREFIX] * 12)
    )
    with shared_prefixes(engine, together=256):
        scheduler = Scheduler(engine, step_tokens=2048, queued_tokens=4096)
        for [job], ratio in ((plain, 1.0), (alike, 1 + LATEST_WEIGHT * 11 * (39 - 5) / (40 + 11 * 6))):
            scheduler.submit(job)
            assert [answer.id for answer in until_idle(scheduler)] == [1]
            scheduler.submit(replace(job, id=2))
            load, shown = scheduler.load, scheduler.told_load
            assert shown.tokens_per_second == pytest.approx(ratio * load.tokens_per_second)
            assert shown.queued_tokens == int(ratio * load.queued_tokens) > 0
            assert shown.estimate(10, Priority.DEFAULT).wait == pytest.approx(
                load.estimate(10, Priority.DEFAULT).wait, rel=0.05
            )
            scheduler.cancel(2)


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 60))
def test_a_text_shares_with_the_one_before_it_what_it_shares_with_any(seed: int, count: int, longest: int) -> None:
    """Held against all pairs of texts, within each kind."""
    chance = random.Random(seed)
    texts = [np.array(text, dtype=np.int32) for text in family(chance, count, longest, seed)]
    kinds = [chance.randint(0, 1) for _ in texts]
    groups = families(texts, kinds)
    assert sorted(place for members in groups for place in members) == sorted(
        {
            place
            for place, text in enumerate(texts)
            for other, same in enumerate(texts)
            if other != place
            and kinds[other] == kinds[place]
            and _alike(text, same) >= LEAST
            and min(len(text), len(same)) > LEAST
        }
    )
    for members in groups:
        for number, shared in enumerate(shared_with_previous(texts, members)):
            text, earlier = texts[members[number]], members[:number]
            most = max((_alike(text, texts[other]) for other in earlier), default=0)
            assert shared == (min(most, len(text) - 1) if most else 0)


def _alike(first: np.ndarray, second: np.ndarray) -> int:
    """How many first tokens two texts have in common, one by one."""
    count = 0
    while count < min(len(first), len(second)) and first[count] == second[count]:
        count += 1
    return count

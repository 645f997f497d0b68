"""Texts that begin alike are computed once, and give what each gives by itself."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.engine.engine import ModelEngine
from gpu_worker.engine.jobs.alike import FAMILY_ROOM
from gpu_worker.engine.jobs.units import SHARED_COST, PieceLimits
from gpu_worker.kernels.cpu import library
from gpu_worker.loop.interface import JobSlice
from gpu_worker.ragged.prefixes import LEAST, families, shared_with_previous
from shared.jobs import Classify, Job, JobResult
from shared.ragged import RaggedTokens
from support.every_kind import assert_alike, assert_same_bits, vector_engine, vector_jobs
from support.families import family
from support.in_pieces import run_in_steps
from support.parity import Tables
from support.tiny import MULTI, encode, random_ids, raw, run

pytestmark = pytest.mark.usefixtures("one_thread")
LIBRARY = library.load()
PREFIX = random_ids([40], seed=9)[0]


@contextmanager
def shared_prefixes(engine: ModelEngine, chunk: int = 0) -> Iterator[None]:
    """Texts of the engine's jobs share first tokens for a while."""
    assert not engine.model.unshared
    engine.cut_texts(PieceLimits(longest=chunk, text_bytes=engine.model.cutting.text_bytes, shares=True))
    try:
        yield
    finally:
        engine.cut_texts(PieceLimits())


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
        for chunk in (0, 64):
            before = engine.shared_tokens
            with shared_prefixes(engine, chunk):
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


@pytest.mark.skipif(bool(LIBRARY.missing), reason=f"the processor's kernels: {LIBRARY.missing}")
@pytest.mark.parametrize("dtype", sorted(str(dtype)[6:] for dtype in LIBRARY.formats))
@pytest.mark.parametrize("name", ["tiny-qwen3", pytest.param("tiny-gemma2", marks=pytest.mark.slow)])
def test_same_bits_whatever_texts_share(name: str, dtype: str) -> None:
    """What `--same-bits` promises does not depend on which text a token was computed with."""
    engine, jobs = vector_engine(name, dtype, splade=False, has_same_bits=True), families_of(3)
    expected = by_themselves(engine, jobs)
    for chunk in (0, 32):
        with shared_prefixes(engine, chunk):
            assert_same_bits(run(engine, jobs), expected)
            assert_same_bits(run_in_steps(engine, jobs, seed=1, most_units=5), expected)


def test_what_a_step_computes_of_texts_that_begin_alike() -> None:
    """Each token that they have in common once; of equal texts only the last token again."""
    engine = vector_engine("tiny-qwen3", "float32", True)
    longer = [*PREFIX, *random_ids([20], seed=5)[0]]
    jobs = [Job(id=1, work=encode(MULTI), tokens=RaggedTokens.of([PREFIX, longer, longer, PREFIX[: LEAST - 1]]))]
    before = engine.shared_tokens
    with shared_prefixes(engine):
        run(engine, jobs)
    assert engine.shared_tokens - before == len(PREFIX) + len(longer) - 1


def test_long_texts_that_begin_alike_are_computed_once() -> None:
    """A text in pieces begins where it parts from the one before, whose keys and values it copies; they have room
    together, and all of it is given back."""
    engine = vector_engine("tiny-qwen3", "float32", True)
    (begin,), rests = random_ids([90], seed=7), random_ids([0, 40, 100], seed=8)
    job = Job(id=1, work=raw(MULTI), tokens=RaggedTokens.of([[*begin, *rest] for rest in rests]))
    expected = by_themselves(engine, [job])
    with shared_prefixes(engine, chunk=32):
        before, opened = engine.shared_tokens, engine.open(job)
        assert (sum(room > 0 for room in opened.room), sum(opened.room)) == (1, 0)
        assert max(opened.room) == sum(engine.limits.text_bytes.of(90 + len(rest)) for rest in rests)
        assert sum(opened.costs) == 90 + 40 + 100 + 2 * -(-90 // SHARED_COST)
        for seed in range(4):
            assert_alike(run_in_steps(engine, [job], seed), expected, "float32")
        assert engine.shared_tokens - before == 4 * (90 + 90)


def test_long_texts_share_no_more_than_there_is_room_for() -> None:
    """Their rooms are held together, so they may take a part of all room only; nor do they for a small part of each."""
    engine = vector_engine("tiny-qwen3", "float32", True)
    (begin,), rests = random_ids([90], seed=7), random_ids([10, 10, 10, 290], seed=8)
    job = Job(id=1, work=raw(MULTI), tokens=RaggedTokens.of([[*begin, *rest] for rest in rests]))
    of_two = engine.model.cutting.text_bytes.of(200)
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


def test_a_failed_step_is_computed_again() -> None:
    """A text whose leader is in no step any more is computed by itself."""
    engine = vector_engine("tiny-qwen3", "float32", True)
    jobs = [Job(id=number, work=raw(MULTI), tokens=RaggedTokens.of([PREFIX])) for number in range(2)]
    expected = by_themselves(engine, jobs)
    with shared_prefixes(engine):
        opened = [engine.open(job) for job in jobs]
        slices = [JobSlice(job=job, start=0, stop=1) for job in opened]
        engine.launch(slices)  # nobody collects it
        for job_slice in reversed(slices):
            engine.launch([job_slice]).collect()
        assert_alike([job.result() for job in opened], expected, "float32")


def test_texts_that_begin_alike_are_served_together_and_cost_less() -> None:
    """The shortest text of a family says when it is served; what others share costs a small part of what it would."""
    engine = vector_engine("tiny-qwen3", "float32", True)
    other, rest = random_ids([45, 30], seed=6)
    job = Job(id=1, work=encode(MULTI), tokens=RaggedTokens.of([[*PREFIX, *rest], other, PREFIX]))
    with shared_prefixes(engine):
        opened = engine.open(job)
        order = [int(opened.selection(unit, unit + 1).numbers[0]) for unit in range(3)]
    assert order == [2, 0, 1]
    assert opened.costs == [40, 30 + 40 // SHARED_COST, 45]


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 60))
def test_a_text_shares_with_the_one_before_it_what_it_shares_with_any(seed: int, count: int, longest: int) -> None:
    """Held against all pairs of texts, within each kind."""
    chance = random.Random(seed)
    texts = [np.array(text, dtype=np.int32) for text in family(chance, count, longest, seed)]
    kinds = [chance.randint(0, 1) for _ in texts]
    found = families(texts, kinds)
    assert sorted(place for members in found for place in members) == sorted(
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
    for members in found:
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


def test_no_text_shares_where_the_user_wants_none() -> None:
    """`--share-prefixes` off."""
    engine = vector_engine("tiny-qwen3", "float32", True)
    job = Job(id=1, work=encode(MULTI), tokens=RaggedTokens.of([PREFIX, PREFIX]))
    before = engine.shared_tokens
    run(engine, [job, replace(job, id=2)])
    assert engine.shared_tokens == before

"""Token rows that leave with their pieces are those of the whole text: each once, in order, whatever fails."""

import random
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from torch import nn

from gpu_worker.engine.engine import ModelEngine
from gpu_worker.engine.jobs.encode_parts import EncodePartsJob, EncodePartsSlice
from gpu_worker.engine.jobs.units import PieceLimits
from gpu_worker.model.loading import Model, load
from gpu_worker.schedule.interface import OutOfMemory
from gpu_worker.schedule.scheduler import Scheduler
from gpu_worker.schedule.steps import JobOutcome
from shared.errors import Internal
from shared.jobs import Job, JobResult
from shared.ragged import RaggedTokens
from shared.vectors import DataType, OutputKind
from support.tiny import CPU, DENSE, MULTI, encode, random_ids, run

CHUNK = 16
pytestmark = pytest.mark.usefixtures("one_thread")


@cache
def model(name: str) -> Model:
    return load(f"random:{name}", CPU)


@cache
def engine(name: str) -> ModelEngine:
    return ModelEngine(model(name), limits=PieceLimits(longest=CHUNK))


class Sent:
    """What left of each job, and its outcome."""

    def __init__(self) -> None:
        self.parts = defaultdict[int, list[JobResult]](list)
        self.outcomes: dict[int, JobOutcome] = {}

    def add_part(self, identity: int, part: JobResult) -> None:
        assert identity not in self.outcomes
        self.parts[identity].append(part)

    def joined(self, identity: int) -> JobResult:
        """One result of all parts."""
        last = self.outcomes[identity]
        assert isinstance(last, JobResult), last
        results = [*self.parts[identity], last]
        tokens = [result.tokens for result in results if result.tokens is not None]
        assert len(tokens) == len(results)
        rows = type(tokens[0])(
            dimensions=tokens[0].dimensions,
            data=b"".join(bytes(rows.data) for rows in tokens),
            scales=b"".join(bytes(rows.scales) for rows in tokens),
        )
        return JobResult(
            tokens=rows, row_lengths=last.row_lengths, token_ids=b"".join(result.token_ids for result in results)
        )


def sent_by(worker: ModelEngine, jobs: Sequence[Job], step_tokens: int) -> Sent:
    """All jobs through the scheduler, in steps of so many tokens."""
    sent = Sent()
    loop = Scheduler(worker, step_tokens=step_tokens, queued_tokens=1_000_000, on_part=sent.add_part)
    for job in jobs:
        loop.submit(job)
    for ended in loop.until_idle():
        sent.outcomes[ended.id] = ended.outcome
    return sent


def jobs_of(lengths: Sequence[int], **options: Any) -> list[Job]:
    """A text each; every third wants its rows in one, with pooled rows beside them."""
    texts = random_ids(lengths, seed=3)
    works = [
        encode(DENSE, MULTI, **options) if number % 3 == 2 else encode(MULTI, in_parts=True, **options)
        for number in range(len(texts))
    ]
    return [
        Job(id=number, work=work, tokens=RaggedTokens.of([text]))
        for number, (work, text) in enumerate(zip(works, texts, strict=True))
    ]


def assert_rows(found: JobResult, expected: JobResult) -> None:
    assert found.row_lengths == expected.row_lengths
    assert found.token_ids == expected.token_ids
    assert found.tokens is not None
    assert expected.tokens is not None
    assert found.tokens.dimensions == expected.tokens.dimensions
    numbers = [np.frombuffer(rows.data, dtype="<f4") for rows in (found.tokens, expected.tokens)]
    assert np.abs(numbers[0] - numbers[1]).max(initial=0.0) < 1e-5
    assert len(found.tokens.scales) == len(expected.tokens.scales)


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-mistral", "tiny-gemma3"])
@pytest.mark.parametrize("options", [{}, {"dimensions": 8, "token_ids": True}])
def test_parts_make_up_the_rows_of_the_whole_text(name: str, options: dict[str, Any]) -> None:
    """Alone and beside others, of 1 to 3 pieces and a token."""
    jobs = jobs_of([1, 5, 49, 16, 17, 31, 48, 49, 33, 200, 20, 64], **options)
    expected = run(ModelEngine(model(name)), jobs)
    for step_tokens in (16, 40, 10_000):
        sent = sent_by(engine(name), jobs, step_tokens)
        assert all(not sent.parts[number] for number in range(2, len(jobs), 3))
        assert step_tokens > 200 or len(sent.parts[9]) >= 3
        for job in jobs:
            assert_rows(sent.joined(job.id), expected[job.id])


@pytest.mark.parametrize(("outputs", "lengths"), [((DENSE, MULTI), [100]), ((MULTI,), [100, 30])])
def test_other_jobs_leave_as_a_whole(outputs: tuple[OutputKind, ...], lengths: list[int]) -> None:
    """Pooled rows need a text's end, and the rows of several texts come in their order."""
    job = Job(id=0, work=encode(*outputs, in_parts=True), tokens=RaggedTokens.of(random_ids(lengths)))
    sent = sent_by(engine("tiny-qwen3"), [job], 32)
    assert not sent.parts
    [expected] = run(ModelEngine(model("tiny-qwen3")), [job])
    assert_rows(sent.joined(0), expected)


def test_packed_rows_have_their_scales() -> None:
    """INT8: each part its own, one a row."""
    [job] = jobs_of([100], data_type=DataType.INT8)
    found = sent_by(engine("tiny-qwen3"), [job], 32).joined(0).tokens
    [expected] = [result.tokens for result in run(ModelEngine(model("tiny-qwen3")), [job])]
    assert found is not None
    assert expected is not None
    unpacked = [
        np.frombuffer(rows.data, dtype=np.int8).reshape(100, -1) * np.frombuffer(rows.scales, dtype="<f4")[:, None]
        for rows in (found, expected)
    ]
    assert np.abs(unpacked[0] - unpacked[1]).max() < 0.01


@pytest.mark.parametrize("seed", [0, 1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_step_that_is_computed_again_sends_nothing_twice(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its rows were with the job already when memory ran out."""
    chance, put, failures = random.Random(seed), EncodePartsSlice.on_host, list[int]()

    def failing(self: EncodePartsSlice) -> None:
        put(self)
        if len(self._packed.token_places) > CHUNK and chance.random() < 0.7:
            failures.append(1)
            raise OutOfMemory

    jobs = jobs_of([200, 49, 49, 100, 130])
    expected = run(ModelEngine(model("tiny-qwen3")), jobs)
    monkeypatch.setattr(EncodePartsSlice, "on_host", failing)
    sent = sent_by(engine("tiny-qwen3"), jobs, 100)
    assert failures
    for job in jobs:
        assert_rows(sent.joined(job.id), expected[job.id])


def test_rows_that_are_no_numbers_end_the_job_and_never_leave() -> None:
    """The rows before them have left; nothing is computed of the rest."""
    broken = load("random:tiny-qwen3", CPU)
    [embeddings] = [part for part in broken.encoder.model.modules() if isinstance(part, nn.Embedding)]
    embeddings.weight.data[950] = float("nan")
    [text] = random_ids([200])
    text[100] = 950
    job = Job(id=0, work=encode(MULTI, in_parts=True), tokens=RaggedTokens.of([text]))
    sent = sent_by(ModelEngine(broken, limits=PieceLimits(longest=CHUNK)), [job], CHUNK)
    assert isinstance(sent.outcomes[0], Internal)
    assert len(sent.parts[0]) == 100 // CHUNK


def test_no_hidden_states_are_kept_and_rows_go_as_they_are_taken() -> None:
    """Beside keys and values nothing grows with the text."""
    worker, length = engine("tiny-qwen3"), 160
    sent = Sent()
    loop = Scheduler(worker, step_tokens=CHUNK, queued_tokens=10_000, on_part=sent.add_part)
    loop.submit(jobs_of([length])[0])
    [open_job] = map(loop._jobs.of, loop._jobs.ids)
    assert isinstance(open_job, EncodePartsJob)
    while not sent.parts[0]:
        loop.advance()
    [kept] = open_job.caches.values()
    hidden_bytes = 64 * 4
    assert kept.bytes == length * (worker.model.cutting.text_bytes.token_bytes - hidden_bytes)
    assert len(open_job._pieces) <= 1

"""Late interaction in the engine: skiplist, unattended tails, explanations, texts against given documents."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.device.transfer import StepDownload
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.engine.jobs.max_sim import MaxSimJob
from gpu_worker.engine.step.outputs import Outputs
from gpu_worker.engine.step.sequences import PackedSequences
from gpu_worker.engine.step.step import NOTHING
from gpu_worker.kernels.maxsim.maxsim_kernels import PlainMaxSim
from gpu_worker.model.heads.heads import Heads
from gpu_worker.model.loading import load
from shared.card import LateInteraction
from shared.errors import DimensionMismatch, InvalidInput, UnsupportedTask
from shared.jobs import Job, JobResult, MaxSim, RaggedTokens
from shared.vectors import DataType, InputType, Layout, MultiVectors, ScoringMethod
from support.random_models import random_model
from support.tiny import CPU, MULTI, ask, encode, random_ids, run, score, scores, token_rows

pytestmark = pytest.mark.usefixtures("one_thread")
LATE = ScoringMethod.LATE_INTERACTION
SKIPLIST = (20, 21, 22)
READING = LateInteraction(query_length=32, document_length=300, skiplist=SKIPLIST)
QUERIES = [[30, 20, 31, 32], [40, 41]]
DOCUMENTS = [[50, 20, 51], [20, 21], [52, 53, 54, 21, 30], [31]]


@pytest.fixture(scope="module")
def engine() -> ModelEngine:
    """A ColBERT shape that skips three ids in documents."""
    return ModelEngine(replace(load(random_model("tiny-colbert"), CPU), late_interaction=READING))


@pytest.fixture(scope="module")
def bge() -> ModelEngine:
    """BGE-M3's shape, which has no token vector for the first token."""
    return ModelEngine(load(random_model("tiny-bge-m3"), CPU))


def rows(engine: ModelEngine, texts: Sequence[Sequence[int]], side: InputType, **options: object) -> list[np.ndarray]:
    return token_rows(ask(engine, encode(MULTI, input_type=side, **options), texts))


def packed(vectors: Sequence[np.ndarray], data_type: DataType = DataType.FLOAT32) -> MultiVectors:
    kind = {DataType.FLOAT32: np.float32, DataType.FLOAT16: np.float16}[data_type]
    return MultiVectors(
        data_type=data_type,
        dimensions=vectors[0].shape[1],
        lengths=tuple(map(len, vectors)),
        data=np.concatenate(vectors).astype(kind).tobytes(),
    )


def explained(result: JobResult, columns: int) -> tuple[np.ndarray, np.ndarray]:
    return (
        np.frombuffer(result.winners, "<i4").reshape(-1, columns),
        np.frombuffer(result.similarities, "<f4").reshape(-1, columns),
    )


def test_the_skiplist_counts_for_documents_and_for_texts_that_are_neither(engine: ModelEngine) -> None:
    """Not for queries; skipped tokens take part in attention all the same, and ids tell which rows there are."""
    whole = rows(engine, DOCUMENTS, InputType.QUERY)
    for side in (InputType.DOCUMENT, InputType.UNSPECIFIED):
        result = ask(engine, encode(MULTI, input_type=side, token_ids=True), DOCUMENTS)
        for ids, of_side, every in zip(DOCUMENTS, token_rows(result), whole, strict=True):
            assert np.array_equal(of_side, every[~np.isin(ids, SKIPLIST)])
        assert np.frombuffer(result.token_ids, "<i4").tolist() == [50, 51, 52, 53, 54, 30, 31]


@pytest.mark.parametrize("width", [None, 1])
def test_an_explanation_adds_up_to_the_score(engine: ModelEngine, width: int | None) -> None:
    """Winners are places in the document with its skipped tokens counted; a document without rows has none."""
    job = Job(id=1, work=score(LATE, 1, explain=True), tokens=RaggedTokens.of([*QUERIES[:1], *DOCUMENTS]))
    result = run(engine, [job], width)[0]
    winners, similarities = explained(result, len(QUERIES[0]))
    query, documents = rows(engine, QUERIES[:1], InputType.QUERY)[0], rows(engine, DOCUMENTS, InputType.QUERY)
    for ids, document, places, values in zip(DOCUMENTS, documents, winners, similarities, strict=True):
        counted = np.flatnonzero(~np.isin(ids, SKIPLIST))
        if not len(counted):
            assert (places == -1).all()
            assert not values.any()
            continue
        products = query @ document[counted].T
        assert places.tolist() == counted[products.argmax(axis=1)].tolist()
        assert np.allclose(values, products.max(axis=1), atol=1e-6)
    there = winners[:, 0] >= 0
    assert np.allclose(scores(result, 4)[0][there], similarities.sum(axis=1)[there], atol=1e-5)


def test_query_tokens_without_a_vector_are_not_explained(bge: ModelEngine) -> None:
    result = ask(bge, score(LATE, 1, explain=True), [[30, 31, 32], [40, 41]])
    winners, _ = explained(result, 3)
    assert winners[0].tolist() == [-1, 1, 1]


def test_what_cannot_be_explained_is_refused(bge: ModelEngine) -> None:
    """Two queries at once; scores of another method."""
    for work in (score(LATE, 2, explain=True), score(ScoringMethod.DENSE, 1, explain=True)):
        with pytest.raises(InvalidInput, match="explain needs"):
            ask(bge, work, [[30], [31], [32]])


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(0, 12)), min_size=1, max_size=6), st.sampled_from([None, 1, 2])
)
def test_nobody_attends_to_a_tail(engine: ModelEngine, texts: list[tuple[int, int]], width: int | None) -> None:
    """Rows before it come out as without it, and its own rows are as those of the same text alone."""
    full = random_ids([length + tail for length, tail in texts])
    tails = tuple(tail for _, tail in texts)
    work = encode(MULTI, input_type=InputType.QUERY)
    with_tails = Job(id=1, work=work, tokens=RaggedTokens.of(full), unattended_tails=tails)
    other = Job(id=2, work=work, tokens=RaggedTokens.of(random_ids([5, 12, 32], seed=1)))
    ours = token_rows(run(engine, [with_tails, other], width)[0])
    for row, (length, tail) in enumerate(texts):
        bare = rows(engine, [full[row][:length]], InputType.QUERY)[0]
        assert np.abs(ours[row][:length] - bare).max() < 1e-6
        alone = ask(engine, work, [full[row]], unattended_tails=(tail,) if tail else ())
        assert np.abs(ours[row] - token_rows(alone)[0]).max() < 1e-6


def test_winners_of_given_vectors_stand_in_the_order_of_the_scores(engine: ModelEngine) -> None:
    """Row-major: for each query all documents, and in each of them the query's rows."""
    queries = [np.eye(3, dtype=np.float32)[:2], np.eye(3, dtype=np.float32)[2:]]
    documents = [np.eye(3, dtype=np.float32)[::-1], np.empty((0, 3), np.float32), np.eye(3, dtype=np.float32)]
    work = MaxSim(
        queries=packed(queries),
        documents=packed(documents),
        layout=Layout.MATRIX,
        unit_rows=False,
        mean=False,
        explain=True,
    )
    result = run(engine, [Job(id=1, work=work)])[0]
    assert np.frombuffer(result.winners, "<i4").tolist() == [2, 1, -1, -1, 0, 1, 0, -1, 2]
    assert np.frombuffer(result.similarities, "<f4").tolist() == [1, 1, 0, 0, 1, 1, 1, 0, 1]


@pytest.mark.parametrize("layout", Layout)
def test_winners_of_texts_stand_at_their_tokens(bge: ModelEngine, layout: Layout) -> None:
    """Also where some of a query's tokens have no vector: there is none of them, and the others keep their places."""
    documents = packed([np.eye(64, dtype=np.float32)[:3], np.eye(64, dtype=np.float32)[3:4]])
    work = MaxSim(queries=None, documents=documents, layout=layout, unit_rows=False, mean=False, explain=True)
    result = ask(bge, work, QUERIES)  # type: ignore[arg-type]
    winners = np.frombuffer(result.winners, "<i4").tolist()
    queries = [each[:, :64] for each in rows(bge, QUERIES, InputType.QUERY)]
    first, second = ([-1, *each[:, :3].argmax(axis=1).tolist()] for each in queries)
    one, other = ([-1, *[0] * len(each)] for each in queries)
    assert winners == (first + other if layout is Layout.PAIRS else first + one + second + other)
    assert len(result.similarities) == len(result.winners)


def test_texts_and_documents_that_cannot_meet_are_refused(engine: ModelEngine) -> None:
    """More dimensions than the model has, another number of pairs, a model without token vectors."""
    wide = MaxSim(queries=None, documents=packed([np.ones((2, 49))]), layout=Layout.MATRIX, unit_rows=False, mean=False)
    with pytest.raises(DimensionMismatch, match="49 dimensions"):
        run(engine, [Job(id=1, work=wide, tokens=RaggedTokens.of(QUERIES))])
    fitting = replace(wide, documents=packed([np.ones((2, 48))]))
    with pytest.raises(InvalidInput, match="as many queries"):
        run(engine, [Job(id=1, work=replace(fitting, layout=Layout.PAIRS), tokens=RaggedTokens.of(QUERIES))])
    with pytest.raises(InvalidInput, match="no sequences"):
        run(engine, [Job(id=1, work=fitting)])
    splade = ModelEngine(load(random_model("tiny-splade"), CPU))
    with pytest.raises(UnsupportedTask, match="no token vectors"):
        run(splade, [Job(id=1, work=fitting, tokens=RaggedTokens.of(QUERIES))])


@pytest.mark.parametrize("data_type", [DataType.FLOAT16, DataType.BFLOAT16])
def test_half_precision_may_stay_as_it_is(data_type: DataType) -> None:
    """A device that compares it natively gets the same scores, but for documents of another width or type."""
    generator = torch.Generator().manual_seed(0)
    kind = {DataType.FLOAT16: torch.float16, DataType.BFLOAT16: torch.bfloat16}[data_type]
    drawn = torch.randn(7, 48, generator=generator).to(kind)
    given_vectors = MultiVectors(
        data_type=data_type, dimensions=48, lengths=(3, 4), data=drawn.view(torch.uint8).numpy().tobytes()
    )
    work = MaxSim(queries=given_vectors, documents=given_vectors, layout=Layout.MATRIX, unit_rows=False, mean=False)
    seen: list[torch.dtype] = []

    class Watching(PlainMaxSim):
        def __call__(self, queries: torch.Tensor, documents: torch.Tensor, *arguments: Any) -> torch.Tensor:
            seen.append(documents.dtype)
            assert queries.dtype is documents.dtype
            return super().__call__(queries, documents, *arguments)

    def scored(asked: MaxSim, half_width: int) -> np.ndarray:
        job, download = MaxSimJob(Job(id=1, work=asked), asked, 1e6, half_width), StepDownload()
        nothing = job.selection(0, 2).numbers
        outputs = Outputs(NOTHING, CPU.device, Heads(), np.empty(0, dtype=np.int32), Watching())
        packed_sequences = PackedSequences(sequences=job.sequences, numbers=nothing, places=nothing)
        slice_rows = outputs.slice_rows(job.wanted, packed_sequences, 0, 2)
        slice_rows.compared = job.compare(slice_rows, outputs, download)
        download.wait()
        job.put(slice_rows)
        return scores(job.result(), 2)

    single = scored(work, 0)
    assert np.allclose(scored(work, 48), single, atol=1e-3)
    assert np.allclose(scored(replace(work, unit_rows=True), 48), scored(replace(work, unit_rows=True), 0), atol=1e-6)
    scored(work, 128)
    assert seen == [torch.float32, kind, *[torch.float32] * 3]
    rows_32 = packed([drawn[:3].float().numpy(), drawn[3:].float().numpy()])
    assert np.allclose(scored(replace(work, queries=rows_32), 48), single, atol=1e-3)
    assert seen[-1] is torch.float32

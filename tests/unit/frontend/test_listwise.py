"""Listwise rerankers in the frontend: how a block is written, and what rows become."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from listwise_fakes import LATER, Blocks, D, Q, cosines, pipeline, rerank, score, scores_of, written

from frontend_service import postprocess
from frontend_service.domain.limits import KindBytes, expected_reply
from frontend_service.services.embed import EmbeddingService
from frontend_service.workers.job_stream import JobReply, WrongReply
from selvage.v1 import embedding_pb2, vectors_pb2
from shared.errors import InvalidInput, SelvageError, UnsupportedTask
from shared.jobs import ChunkKind, JobResult, Rows
from shared.vectors import Layout


async def test_a_block_is_written_as_the_card_says() -> None:
    """With a range of one token at each document's marker, then one at the query's."""
    worker = Blocks()
    reranked = await rerank(worker, "the theme", ["others", "", "then {query} 345"], instruction="{document}")
    assert worker.blocks == [written("the theme", ["others", "", "then {query} 345"], "{document}")]
    job = worker.jobs[0]
    assert job.ranges is not None
    ids = np.frombuffer(job.tokens.ids, dtype="<i4")
    assert ids[list(job.ranges.starts)].tolist() == [400, 400, 400, 401]
    assert [stop - start for start, stop in zip(job.ranges.starts, job.ranges.stops, strict=True)] == [1] * 4
    wanted = cosines(worker.rows)
    assert [index for index, _ in reranked.ranking] == np.argsort(-wanted, kind="stable").tolist()
    assert np.allclose([value for _, value in reranked.ranking], np.sort(wanted)[::-1], atol=1e-6)


async def test_more_documents_come_into_several_blocks() -> None:
    """Their scores are those with the weighted mean of the query's rows."""
    worker, documents = Blocks(), [f"word {number}" for number in range(8)]
    answer = await score(worker, ["them"], documents)
    assert worker.blocks == [written("them", documents[start : start + 3]) for start in (0, 3, 6)]
    assert np.allclose(scores_of(answer), cosines(worker.rows), atol=1e-6)
    assert answer.result.dense is None


async def test_equal_documents_are_not_computed_once() -> None:
    worker = Blocks()
    answer = await score(worker, ["them", "words"], ["a", "a"])
    assert worker.blocks == [written(query, ["a", "a"]) for query in ("them", "words")]
    first, second = (cosines([rows]) for rows in worker.rows)
    assert first[0] != pytest.approx(first[1])
    assert np.allclose(scores_of(answer), [*first, *second], atol=1e-6)


async def test_pairs_are_blocks_of_one_document() -> None:
    worker = Blocks()
    answer = await score(worker, ["them", "words"], ["a", "b"], layout=Layout.PAIRS)
    assert worker.blocks == [written("them", ["a"]), written("words", ["b"])]
    assert np.allclose(scores_of(answer), [cosines([rows])[0] for rows in worker.rows], atol=1e-6)


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (f"a{D}b{Q}c", "abc"),
        (f"{D}{D}", ""),
        (f"a{D[:3]}{Q}{D[3:]}b", "ab"),
        (f"{Q[:2]}{D}{Q[2:]}", " "),
        ((D[:3] * 60) + (D[3:] * 60), None),
    ],
)
async def test_markers_of_callers_are_taken_out(sent: str, read: str | None) -> None:
    """Also those that only appear once another was taken out: no caller gives another's document a row."""
    worker = Blocks(query_length=400, document_length=400, max_tokens=4000)
    answer = await score(worker, [sent], [sent, "b"], instruction=sent)
    (block,) = worker.blocks
    assert (block.count(D), block.count(Q)) == (2, 1)
    if read is not None:
        assert block == written(read, [read, "b"], read)
    assert len(scores_of(answer)) == 2


@pytest.mark.parametrize(
    ("error", "field", "fields"),
    [
        (UnsupportedTask, "method", {"method": vectors_pb2.SCORING_METHOD_CROSS_ENCODER}),
        (InvalidInput, "explain", {"explain": True}),
        (InvalidInput, "part_of_list", {"part_of_list": True}),
    ],
)
async def test_it_scores_in_one_way(error: type[SelvageError], field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(error) as refused:
        await rerank(Blocks(), "the", ["a"], **fields)
    assert refused.value.field == field
    await rerank(Blocks(), "the", ["a"], method=vectors_pb2.SCORING_METHOD_LISTWISE)


async def test_it_embeds_nothing() -> None:
    from frontend_service.api.selvage_v1 import embed_rpcs

    asked = embed_rpcs.embed_request_from_pb(embedding_pb2.EmbedRequest(texts=["a"]))
    with pytest.raises(UnsupportedTask, match="not for EMBED"):
        await EmbeddingService(pipeline(Blocks())).embed(asked, LATER)


def test_rows_of_zeros_score_zero() -> None:
    """As in PyTorch; so do queries all of whose blocks have the weight 0."""
    nothing = np.zeros((4, 8), dtype="<f4")
    scores = postprocess.listwise_scores(Rows(dimensions=8, data=nothing.tobytes()), (1, 1), (2,))
    assert np.frombuffer(scores, dtype="<f4").tolist() == [0, 0]
    against = np.array([[1.0], [-1.0], [2.0], [-2.0]], dtype="<f4")
    scores = postprocess.listwise_scores(Rows(dimensions=1, data=against.tobytes()), (1, 1), (2,))
    assert np.frombuffer(scores, dtype="<f4").tolist() == [-1, -1]


def test_scores_take_little_memory_beside_the_rows() -> None:
    """A reply may be as large as a message, and several come at once."""
    sizes = (125,) * 40
    data = np.random.default_rng(1).standard_normal((sum(sizes) + len(sizes), 64), dtype="<f4")
    rows = Rows(dimensions=64, data=data.tobytes())
    tracemalloc.start()
    scores = np.frombuffer(postprocess.listwise_scores(rows, sizes, (40,)), dtype="<f4")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert np.allclose(scores, cosines(np.split(data.astype(np.float64), len(sizes))), atol=1e-6)
    assert peak < len(rows.data) / 2


async def test_a_reply_has_a_row_for_each_marker() -> None:
    """Of the width that the card tells; nothing else is taken."""
    worker = Blocks()
    await score(worker, ["the"], ["a", "b"])
    job = worker.jobs[0]
    expected = expected_reply(job.work, job.tokens, worker.served.card, job.ranges)
    assert (expected.kinds, expected.dense) == ({ChunkKind.DENSE: KindBytes(3 * 8 * 4)}, 8)


@pytest.mark.parametrize(
    ("rows", "width", "number", "why"),
    [
        (3, 8, 1.0, ""),
        (2, 8, 1.0, "it sent less than was asked for"),
        (4, 8, 1.0, "it sent more than was asked for"),
        (3, 4, 1.0, "rows have other dimensions"),
        (3, 8, np.nan, "it sent numbers that are not finite"),
        (3, 8, np.inf, "it sent numbers that are not finite"),
    ],
)
async def test_a_reply_of_other_rows_is_refused(rows: int, width: int, number: float, why: str) -> None:
    """A missing one would give a document the score of another."""
    worker = Blocks()
    await score(worker, ["the"], ["a", "b"])
    data = np.full((rows, width), number, dtype="<f4").tobytes()
    job = worker.jobs[0]
    reply = JobReply(expected_reply(job.work, job.tokens, worker.served.card, job.ranges))
    result = JobResult(dense=Rows(dimensions=width, data=data))

    def checked() -> JobResult:
        reply.append(ChunkKind.DENSE, data)
        return reply.check(result)

    if not why:
        assert checked() is result
        return
    with pytest.raises(WrongReply, match=why):
        checked()

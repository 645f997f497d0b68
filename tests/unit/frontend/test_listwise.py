"""Listwise rerankers in the frontend: how blocks are written, divided, cut and refused, and what rows become."""

import random
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fakes import FakeWorker, card, pipeline_of
from kinds import qwen
from tokenizers import AddedToken, Tokenizer, decoders

from frontend_service import postprocess
from frontend_service.api.selvage_v1 import codec
from frontend_service.domain.limits import ENVELOPE_BYTES, ExpectedReply, Limits, expected_reply
from frontend_service.domain.requests import ScoreRequest, Truncation
from frontend_service.services.pipeline import Answer, ServedModel
from frontend_service.services.rank import RankingService, Reranked
from frontend_service.tokenizing.tokenizer import ModelTexts, ModelTokenizer
from frontend_service.workers.job_stream import JobReply, WrongReply
from selvage.v1 import ranking_pb2, vectors_pb2
from shared.caller import RequestTerms
from shared.card import Listwise, ModelCard
from shared.errors import InputTooLong, InvalidInput, LimitExceeded, ResultTooLarge, SelvageError, UnsupportedTask
from shared.jobs import ChunkKind, Job, JobResult, Rows
from shared.vectors import ScoringMethod, Task, TruncationSide

LATER = RequestTerms.within(3600)
D, Q = "<|d|>", "<|q|>"
PLAIN = Listwise(
    query_length=8,
    document_length=20,
    block_documents=3,
    dimensions=8,
    opening="rank {count} for: {query}\n",
    instruction="<how>\n{instruction}\n</how>\n",
    document="<p {number}>\n{document}" + D + "\n</p>\n",
    closing="<q>\n{query}" + Q + "\n</q>!",
    document_marker=D,
    document_marker_id=400,
    query_marker=Q,
    query_marker_id=401,
)


def tokenizer() -> Tokenizer:
    """One with Qwen's stages, and both markers as tokens."""
    made = qwen()
    made.decoder = decoders.ByteLevel()
    missing = 400 - made.get_vocab_size()
    made.add_special_tokens([AddedToken(f"<|{number}|>", normalized=False) for number in range(missing)])
    made.add_special_tokens([AddedToken(token, normalized=False) for token in (D, Q)])
    assert [made.token_to_id(token) for token in (D, Q)] == [400, 401]
    return made


TOKENIZER = tokenizer()


def listwise_card(**changes: Any) -> ModelCard:
    """The card of a listwise reranker. `changes`: of its texts and limits, or of the card."""
    listwise = {name: changes.pop(name) for name in list(changes) if hasattr(PLAIN, name)}
    fields: dict[str, Any] = {
        "outputs": (),
        "methods": (ScoringMethod.LISTWISE,),
        "default_method": ScoringMethod.LISTWISE,
        "pooling": "",
        "dimensions": 0,
        "multi_vector_dimensions": 0,
        "tasks": (Task.RERANK,),
        "max_tokens": 500,
        "vocabulary_size": 402,
        "pools_spans": True,
        "listwise": replace(PLAIN, **listwise),
    }
    return card(**fields | changes)


class Blocks(FakeWorker):
    """Every row has random numbers, those of equal sequences the same."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(listwise_card(**changes))
        reader = ModelTokenizer(TOKENIZER.to_str().encode(), self.served.card)
        self.served = replace(self.served, texts=ModelTexts(tokenizer=reader))
        self.rows: list[np.ndarray] = []

    async def run(self, model: ServedModel, job: Job, expected: ExpectedReply) -> JobResult:
        self.jobs.append(job)
        assert job.ranges is not None
        self.rows = [
            np.random.default_rng(list(sequence.encode())).standard_normal((count, 8), dtype="<f4")
            for sequence, count in zip(self.blocks, job.ranges.counts, strict=True)
        ]
        return JobResult(dense=Rows(dimensions=8, data=np.concatenate(self.rows).tobytes()))

    @property
    def blocks(self) -> list[str]:
        """The texts of the last job's sequences."""
        tokens = self.jobs[-1].tokens
        ids = np.split(np.frombuffer(tokens.ids, dtype="<i4"), tokens.offsets[1:-1])
        return [TOKENIZER.decode(sequence.tolist(), skip_special_tokens=False) for sequence in ids]


async def rerank(worker: Blocks, query: str, documents: Sequence[str], **fields: Any) -> Reranked:
    message = ranking_pb2.RerankRequest(query=query, documents=documents, **fields)
    return await RankingService(pipeline_of(worker)).rerank(codec.rerank_request_from_pb(message), LATER)


async def score(worker: Blocks, queries: Sequence[str], documents: Sequence[str], **fields: Any) -> Answer:
    request = ScoreRequest(queries=tuple(queries), documents=tuple(documents), **fields)
    return await RankingService(pipeline_of(worker)).score(request, LATER)


def written(query: str, documents: Sequence[str], how: str = "") -> str:
    """A block, by the definition."""
    opening = f"rank {len(documents)} for: {query}\n" + (f"<how>\n{how}\n</how>\n" if how else "")
    passages = "".join(f"<p {number}>\n{document}{D}\n</p>\n" for number, document in enumerate(documents))
    return f"{opening}{passages}<q>\n{query}{Q}\n</q>!"


def cosines(blocks: Sequence[np.ndarray]) -> np.ndarray:
    """Scores of one query's blocks [documents + 1, D], by the definition."""

    def cosine(a: np.ndarray, b: np.ndarray) -> float:
        return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))

    weights = [max((1 + cosine(row, block[-1])) / 2 for row in block[:-1]) for block in blocks]
    query = sum(weight * block[-1] for weight, block in zip(weights, blocks, strict=True)) / sum(weights)
    return np.array([cosine(row, query) for block in blocks for row in block[:-1]])


def scores_of(answer: Answer) -> np.ndarray:
    return np.frombuffer(answer.result.scores, dtype="<f4")


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


async def test_equal_documents_are_not_computed_once() -> None:
    worker = Blocks()
    answer = await score(worker, ["them", "words"], ["a", "a"])
    assert worker.blocks == [written(query, ["a", "a"]) for query in ("them", "words")]
    first, second = (cosines([rows]) for rows in worker.rows)
    assert first[0] != pytest.approx(first[1])
    assert np.allclose(scores_of(answer), [*first, *second], atol=1e-6)


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


def sizes_by_the_code(query: int, documents: Sequence[int], room: int, most: int, longest: int) -> list[int]:
    """How many documents each block has, as the model's own code counts."""
    sizes, size, left = [], 0, room - 2 * query
    for tokens in documents:
        size, left = size + 1, left - tokens
        if size >= most or left <= longest:
            sizes.append(size)
            size, left = 0, room - 2 * query
    return sizes + [size] * (size > 0)


@pytest.mark.parametrize("most", [3, 125])
async def test_blocks_are_those_of_the_code_where_all_that_stands_around_fits(most: int) -> None:
    """Texts far below the limit of a document leave room for it; 3 documents are the most, or the context ends."""
    chance, worker = random.Random(1), Blocks(document_length=400, max_tokens=2000, block_documents=most)
    lengths = [chance.randint(100, 200) for _ in range(30)]
    await score(worker, ["the the"], [" the" * length for length in lengths])
    counts = [block.count(D) for block in worker.blocks]
    assert counts == sizes_by_the_code(len(TOKENIZER.encode("the the").ids), lengths, 2000, most, 400)
    assert (max(counts) > 3) == (most > 3)


async def test_long_texts_are_refused_or_cut() -> None:
    """Each to its own limit; usage tells tokens and cuts of the query and of each document."""
    worker, long = Blocks(), " the" * 25
    with pytest.raises(InputTooLong, match="truncate would cut it") as refused:
        await rerank(worker, long, ["a"])
    assert refused.value.field == "query"
    reranked = await rerank(worker, long, ["a", long], truncate=True, max_tokens_per_document=5)
    assert worker.blocks == [written(" the" * 8, ["a", " the" * 5])]
    answer = reranked.answer
    assert (answer.token_counts, answer.truncated) == ((8, 1, 5), (True, False, True))
    assert answer.tokens.total == worker.jobs[-1].tokens.total
    with pytest.raises(LimitExceeded, match="the model's limit is 20"):
        await rerank(worker, "the", ["a"], max_tokens_per_document=21)


async def test_the_beginning_is_cut_where_a_request_says_so() -> None:
    """The last tokens stay; a letter of which a token is cut off reads as the model's code reads it."""
    worker, left = Blocks(), TruncationSide.LEFT
    cut = Truncation(truncate=True, max_tokens=3, side=left)
    await score(worker, ["the"], ["then 345 them"], document_cut=cut)
    assert worker.blocks == [written("the", [TOKENIZER.decode(TOKENIZER.encode("then 345 them").ids[-3:])])]
    await score(worker, ["the"], ["鯨" * 9], document_cut=Truncation(truncate=True, max_tokens=4))
    beginning = TOKENIZER.decode(TOKENIZER.encode("鯨" * 9).ids[:4])
    assert "�" in beginning
    assert worker.blocks == [written("the", [beginning])]


async def test_a_document_that_fits_into_no_block_is_refused_by_name() -> None:
    """Where the worker's limit leaves less than a query twice and a document."""
    worker = Blocks(max_tokens=60, document_length=50)
    with pytest.raises(InputTooLong, match=r"documents\[1\] has \d+ tokens with its query, the limit is 60") as refused:
        await score(worker, ["the"], ["a", " the" * 45])
    assert refused.value.field == "documents[1]"


@pytest.mark.parametrize("limit", [200, 128])
async def test_texts_that_may_be_cut_are_cut_to_what_a_block_holds(limit: int) -> None:
    """A worker's limit may leave less than a document's length, and less than twice a query's."""
    worker = Blocks(max_tokens=limit, query_length=limit, document_length=limit)
    answer = (await rerank(worker, "the " * limit, ["a", " the" * limit, "鯨" * limit], truncate=True)).answer
    assert answer.truncated == (True, False, True, True)
    assert max(worker.jobs[0].tokens.lengths) <= limit
    assert min(answer.token_counts[2:]) >= limit // 10
    for texts in (("the", [" the" * limit]), ("the " * limit, ["a"])):
        with pytest.raises(InputTooLong):
            await score(worker, [texts[0]], texts[1])


async def test_a_context_of_one_longest_document_holds_many_short_ones() -> None:
    """The rule of the model's code would leave each alone, so that its score compares nothing."""
    worker, documents = Blocks(document_length=300, max_tokens=300, block_documents=125), list("abcdefgh")
    await score(worker, ["the"], documents)
    assert [block.count(D) for block in worker.blocks] == [8]
    await score(worker, ["the"], documents * 4)
    *full, _ = worker.jobs[-1].tokens.lengths
    assert min(full) > 250


@pytest.mark.parametrize("seed", range(36, 40))
async def test_texts_that_have_more_tokens_together_are_divided(seed: int) -> None:
    """Blanks join what stands before them, and the rest of a letter reads as three bytes: none of it is an error.

    No block is longer than the context, though the model's code counts the texts alone.
    """
    chance = random.Random(seed)
    most, limit = chance.randint(2, 9), chance.randint(200, 500)
    worker, pieces = Blocks(block_documents=most, max_tokens=limit), ["鯨", " the", "\n", "  ", "word", " ", "345"]
    documents = ["".join(chance.choices(pieces, k=chance.randint(1, 40))) for _ in range(40)]
    reranked = await rerank(worker, "".join(chance.choices(pieces, k=4)), documents, truncate=True)
    assert len(reranked.ranking) == 40
    counts = [block.count(D) for block in worker.blocks]
    assert (sum(counts), max(counts) <= most) == (40, True)
    assert max(worker.jobs[0].tokens.lengths) <= limit
    wanted = cosines(worker.rows)
    assert [index for index, _ in reranked.ranking] == np.argsort(-wanted.astype("<f4"), kind="stable").tolist()


async def test_a_long_instruction_is_refused_by_its_name() -> None:
    """It stands in every block: one over half of it would leave too little to compare. It is never cut."""
    worker = Blocks()
    with pytest.raises(InputTooLong, match=r"^instruction has 9\d+ tokens, the limit is 2\d\d;") as refused:
        await rerank(worker, "the", ["a"], instruction=" the" * 9000, truncate=True)
    assert refused.value.field == "instruction"
    await rerank(worker, "the", ["a"], instruction=" the" * 200)
    assert worker.blocks == [written("the", ["a"], " the" * 200)]


async def test_rows_that_no_message_holds_are_refused_before_texts_are_read() -> None:
    """A score of 4 bytes is made of a row of 2,048; the reply to a caller has room for all of them."""
    limits = Limits(message_bytes=ENVELOPE_BYTES + 2048 * 20)
    ranking = RankingService(pipeline_of(Blocks(dimensions=512), limits))
    unread = "the " * 20_000  # which would be refused as too long, if it was read
    with pytest.raises(ResultTooLarge, match="score fewer documents or queries") as refused:
        await ranking.score(ScoreRequest(queries=("the", "a"), documents=(unread,) + ("a",) * 15), LATER)
    assert "2048 bytes each" in str(refused.value)
    with pytest.raises(InputTooLong):
        await ranking.score(ScoreRequest(queries=("the",), documents=(unread,) + ("a",) * 10), LATER)


async def test_all_blocks_count_against_the_tokens_of_a_request() -> None:
    worker = Blocks()
    ranking = RankingService(pipeline_of(worker, Limits(request_tokens=200)))
    request = ScoreRequest(queries=("the",) * 9, documents=("a",))
    with pytest.raises(LimitExceeded, match="the limit is 200"):
        await ranking.score(request, LATER)
    assert not worker.jobs

"""Listwise rerankers in the frontend: which documents share a block, and what is cut or refused."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
from listwise_fakes import (
    LATER,
    TOKENIZER,
    Blocks,
    D,
    cosines,
    pipeline,
    rerank,
    score,
    written,
)

from frontend_service.domain.limits import ENVELOPE_BYTES, Limits
from frontend_service.domain.requests import ScoreRequest, Truncation
from frontend_service.services.rank import RankingService
from shared.errors import InputTooLong, LimitExceeded, ResultTooLarge
from shared.vectors import TruncationSide


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
    worker, limits = Blocks(dimensions=512), Limits(message_bytes=ENVELOPE_BYTES + 2048 * 20)
    ranking = RankingService(pipeline(worker, message_bytes=limits.message_bytes))
    unread = "the " * 20_000  # which would be refused as too long, if it was read
    with pytest.raises(ResultTooLarge, match="score fewer documents or queries") as refused:
        await ranking.score(ScoreRequest(queries=("the", "a"), documents=(unread,) + ("a",) * 15), LATER)
    assert "2048 bytes each" in str(refused.value)
    with pytest.raises(InputTooLong):
        await ranking.score(ScoreRequest(queries=("the",), documents=(unread,) + ("a",) * 10), LATER)


async def test_all_blocks_count_against_the_tokens_of_a_request() -> None:
    worker = Blocks()
    ranking = RankingService(pipeline(worker, request_tokens=200))
    asked = ScoreRequest(queries=("the",) * 9, documents=("a",))
    with pytest.raises(LimitExceeded, match="the limit is 200"):
        await ranking.score(asked, LATER)
    assert not worker.jobs

"""Splitting and joining: parts cover the input, and answers of parts make the answer of the whole."""

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selvage.calls import methods
from selvage.calls.split_call import Attempt, RetryPolicy, SplitCall
from selvage.errors import (
    Internal,
    InvalidInput,
    LimitExceeded,
    Overloaded,
    ResultTooLarge,
    SelvageError,
    Unavailable,
)
from selvage.messages import embedding, ranking
from selvage.messages.inputs import InputPart, runs
from support.fake_frontend import ANSWERS, dense_row, score
from support.split_calls import Nobody, begun

sizes = st.lists(st.integers(0, 30), max_size=40)


def slow_runs(sizes: list[int], most: int, room: int) -> list[tuple[int, int]]:
    """By trying: an entry goes to the last part as long as that holds it."""
    groups: list[list[int]] = [[]]
    for size in sizes:
        fits = len(groups[-1]) + 1 <= most and sum(groups[-1]) + size <= room
        if fits or not groups[-1]:
            groups[-1].append(size)
        else:
            groups.append([size])
    stops = np.cumsum([len(group) for group in groups]).tolist()
    return list(zip([0, *stops], stops, strict=False))


@given(sizes, st.integers(1, 10), st.integers(1, 60))
def test_runs_are_as_long_as_they_may(sizes: list[int], most: int, room: int) -> None:
    """Equal to the slow twin, for any sizes."""
    assert list(runs(sizes, most=most, room=room)) == slow_runs(sizes, most, room)


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_halves_cover_the_part(start: int, rows: int, left: int, columns: int) -> None:
    """Each place once, whatever the shape."""
    part = InputPart(start=start, stop=start + rows, left=left, right=left + columns)
    covered = np.zeros((20, 20), dtype=int)
    whole = covered.copy()
    whole[part.rows, part.columns] = 1
    halves = part.halves()
    for half in halves or [part]:
        covered[half.rows, half.columns] += 1
    assert (covered == whole).all()
    assert bool(halves) == (max(rows, columns) > 1)
    assert all(half.size < part.size for half in halves if part.size)


LONG = "\N{GRINNING FACE}" * 1000  # four bytes a letter
ROWS = np.zeros((500, 128), dtype=np.float32)


@pytest.mark.parametrize(
    ("method", "arguments", "options"),
    [
        (methods.embed, [[LONG] * 600], {}),
        (methods.rerank, [LONG, [LONG] * 3000], {}),
        (methods.score, [[LONG] * 1500, [LONG] * 1500], {}),
        (methods.score, [[LONG] * 1500, [LONG] * 1500], {"pairs": True}),
        (methods.max_sim, [[ROWS] * 50, [ROWS] * 50], {}),
        (methods.max_sim, [[LONG] * 3000, [ROWS] * 50], {}),
        (methods.max_sim, [[LONG] * 50, [ROWS] * 50], {"pairs": True}),
    ],
)
def test_no_request_of_several_entries_is_over_16_mib(
    method: Any, arguments: list[Any], options: dict[str, Any]
) -> None:
    """Which is what a service takes over gRPC."""
    operation = method(Nobody(), *arguments, **options)
    sizes = [operation.message(part).ByteSize() for part in operation.parts()]
    assert len(sizes) > 1
    assert max(sizes) <= 16 * 1024 * 1024


def run(operation: Any, seed: int) -> Any:
    """Answers in any order, refuses now and then, and refuses what has more than three rows. No clock runs."""
    now, chance = 0.0, random.Random(seed)
    call = SplitCall(operation, seconds=1e9, retries=RetryPolicy(1_000_000, chance.random), clock=lambda: now)
    under_way: list[Attempt] = []
    while True:
        while len(under_way) < 3 and (attempt := call.next_attempt()) is not None:
            under_way.append(attempt)
        if call.done:
            return operation.result()
        if not under_way:
            now += call.wait_seconds() or 0.0
            continue
        attempt = under_way.pop(chance.randrange(len(under_way)))
        if chance.random() < 0.3:
            kind = chance.choice([Unavailable, Overloaded])
            call.record_failure(attempt, kind("not now", retry_after=chance.choice([0.0, 2.0])))
        elif attempt.part.size > 3:
            call.record_failure(attempt, ResultTooLarge("too much"))
        else:
            call.record_reply(attempt, ANSWERS[type(attempt.message).__name__](attempt.message))


@given(st.lists(st.text(max_size=8), min_size=1, max_size=30), st.integers(0, 2**32))
def test_embed_in_parts_is_embed(texts: list[str], seed: int) -> None:
    """Every output, whatever was refused, halved and answered out of order."""
    embeddings = run(methods.embed(Nobody(), texts, output=["dense", "sparse", "multi_vector"]), seed)
    assert np.array_equal(embeddings.dense, np.stack([dense_row(text) for text in texts]))
    assert [len(rows) for rows in embeddings.multi_vector] == [min(len(text), 5) for text in texts]
    assert all((rows == dense_row(text)).all() for rows, text in zip(embeddings.multi_vector, texts, strict=True))
    assert [set(weights) for weights in embeddings.sparse] == [set(text.encode()) for text in texts]
    assert embeddings.token_counts.tolist() == [len(text) for text in texts]
    assert embeddings.truncated.tolist() == [len(text) > 9 for text in texts]
    assert embeddings.dense_scales is None


def test_a_text_that_is_too_large_alone_is_not_sought_in_halves() -> None:
    """The service names it among the texts of its request; the error has its place among all."""
    call = SplitCall(methods.embed(Nobody(), ["a" * 1000] * 2000), seconds=1e9, retries=RetryPolicy(0))
    _, second = begun(call, 2)
    assert second.part.size > 7
    with pytest.raises(ResultTooLarge) as raised:
        call.record_failure(second, ResultTooLarge("its rows", field="texts[7]"))
    assert raised.value.field == f"texts[{second.part.start + 7}]"


@given(st.lists(st.tuples(st.text(max_size=8), st.integers(1, 3)), min_size=1, max_size=30), st.integers(0, 2**32))
def test_spans_in_parts_come_back_by_text(texts: list[tuple[str, int]], seed: int) -> None:
    """Each in its place, however many its text and those before it have."""
    spans = [[(number, len(text)) for number in range(count)] for text, count in texts]
    results = run(methods.embed(Nobody(), [text for text, _ in texts], spans=spans), seed)
    for rows, (text, _), bounds in zip(results, texts, spans, strict=True):
        assert np.array_equal(rows, np.stack([dense_row(text[start:end]) for start, end in bounds]))


def test_the_chunks_of_a_document_are_never_sent_apart() -> None:
    """However many there are; a reply that would be too large is refused instead."""
    operation = methods.embed(Nobody(), ["x" * 1000] * 2000, late_chunking=True)
    (part,) = operation.parts()
    assert len(operation.message(part).texts) == 2000
    with pytest.raises(ResultTooLarge):
        run(operation, seed=1)


@pytest.mark.parametrize("options", [{}, {"late_chunking": True}, {"spans": [[(0, 1)], [(1, 2)]]}])
def test_a_reply_with_another_number_of_rows_is_refused(options: dict[str, Any]) -> None:
    """A single row would be taken for each of them."""
    operation = methods.embed(Nobody(), ["ab", "cd"], **options)
    (part,) = operation.parts()
    reply = ANSWERS["EmbedRequest"](operation.message(part))
    reply.dense.data = reply.dense.data[: len(reply.dense.data) // 2]
    with pytest.raises(Internal, match="1 dense rows, 2 were asked for"):
        operation.add_reply(part, reply)


@pytest.mark.parametrize(
    "spans", [[], [[(0, 1)], [(0, 1)]], [(0, 1)], [[(0, 1, 2)]], [[("0", 1)]], [[(0, 2**40)]], [3]]
)
def test_spans_that_are_no_pairs_for_each_text_are_refused(spans: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        methods.embed(Nobody(), ["ab"], spans=spans)
    assert refused.value.field.startswith("spans")


words = st.lists(st.text(alphabet="abc", max_size=4), min_size=1, max_size=12)


@given(words, words, st.integers(0, 2**32))
def test_score_in_blocks_is_score(queries: list[str], documents: list[str], seed: int) -> None:
    """A matrix of blocks, each where it belongs."""
    operation = methods.score(Nobody(), queries, documents)
    whole = ANSWERS["ScoreRequest"](operation.message(InputPart(start=0, stop=len(queries), right=len(documents))))
    assert run(operation, seed).ravel().tolist() == list(whole.scores)


@given(words, st.integers(1, 14), st.integers(0, 2**32))
def test_rerank_in_parts_is_rerank(documents: list[str], top_n: int, seed: int) -> None:
    """The same places and scores, also of documents of one score with several logits; ties keep their order."""
    operation = methods.rerank(Nobody(), "query", documents, top_n=top_n)
    whole = ANSWERS["RerankRequest"](operation.message(InputPart(start=0, stop=len(documents))))
    expected = [(ranked.index, ranked.score) for ranked in whole.results]
    assert [(ranked.index, ranked.score) for ranked in run(operation, seed)] == expected


@pytest.mark.parametrize("letters", [1, 50_000])
def test_parts_keep_to_the_limits_of_the_service(letters: int) -> None:
    """Texts and letters of a request, the prompt counted with each text."""
    operation = methods.embed(Nobody(), ["x" * letters] * 2000, prompt="p" * 100)
    for part in operation.parts():
        request = operation.message(part)
        assert len(request.texts) <= embedding.TEXTS
        assert sum(map(len, request.texts)) + 100 * len(request.texts) <= embedding.LETTERS


def refusing_parts(operation: Any, seed: int, most: int = 1_000_000) -> list[Attempt]:
    """Answers in any order as a frontend with a listwise reranker does: it takes no part of a list.

    It refuses more than `most` scores.
    """
    chance = random.Random(seed)
    call = SplitCall(operation, seconds=1e9, retries=RetryPolicy(1_000_000, chance.random))
    under_way, taken = list[Attempt](), list[Attempt]()
    while True:
        while len(under_way) < 3 and (attempt := call.next_attempt()) is not None:
            under_way.append(attempt)
        if call.done:
            return taken
        attempt = under_way.pop(chance.randrange(len(under_way)))
        if attempt.message.part_of_list:
            call.record_failure(attempt, InvalidInput("a part of a list", field="part_of_list"))
        elif attempt.part.size > most:
            call.record_failure(attempt, chance.choice([ResultTooLarge("rows"), LimitExceeded("tokens", field="")]))
        else:
            taken.append(attempt)
            call.record_reply(attempt, ANSWERS[type(attempt.message).__name__](attempt.message))


@pytest.mark.parametrize("seed", range(6))
def test_a_list_that_has_to_stay_whole_is_sent_whole(seed: int) -> None:
    """Once, whenever its parts are refused; their results do not count."""
    documents = [f"document {number}" for number in range(5000)]
    operation = methods.rerank(Nobody(), "a query", documents)
    assert all(operation.message(part).part_of_list for part in operation.parts())
    (attempt,) = refusing_parts(operation, seed)
    assert list(attempt.message.documents) == documents
    assert sorted(ranked.index for ranked in operation.result()) == list(range(5000))


@pytest.mark.parametrize(("most", "sizes"), [(600, [5, 20]), (599, [5, 10, 10]), (30, [1] * 25)])
@pytest.mark.parametrize("seed", range(3))
def test_a_matrix_keeps_all_documents_of_a_query_together(
    monkeypatch: pytest.MonkeyPatch, most: int, sizes: list[int], seed: int
) -> None:
    """Queries still come in several requests, of fewer where too much is refused; so do pairs, parts of nothing."""
    monkeypatch.setattr(ranking.Score, "most", 20)
    monkeypatch.setattr(ranking, "DOCUMENTS", 600)
    documents, queries = [f"document {number}" for number in range(30)], [f"query {number}" for number in range(25)]
    operation = methods.score(Nobody(), queries, documents)
    attempts = refusing_parts(operation, seed, most)
    assert sorted(len(attempt.message.queries) for attempt in attempts) == sizes
    assert all(list(attempt.message.documents) == documents for attempt in attempts)
    assert np.array_equal(operation.result(), [[score(query, document) for document in documents] for query in queries])
    pairs = methods.score(Nobody(), queries, documents[:25], pairs=True)
    assert len(list(pairs.parts())) == 2
    assert not any(pairs.message(part).part_of_list for part in pairs.parts())


def test_a_query_with_too_many_documents_is_refused() -> None:
    """No smaller request would have all of them."""
    for operation in (methods.score(Nobody(), ["a", "b"], ["c"] * 30), methods.rerank(Nobody(), "a", ["c"] * 30)):
        with pytest.raises((ResultTooLarge, LimitExceeded)):
            refusing_parts(operation, 1, most=29)


def test_queries_of_a_matrix_come_in_requests_of_a_size() -> None:
    """By all documents that they read, not by their own number: by letters too."""
    for documents, most in ((["a"] * 100, 10), (["a" * 250_000] * 2, 2), (["a" * 600_000] * 2, 1)):
        parts = list(methods.score(Nobody(), ["q"] * 25, documents).undivided())  # type: ignore[attr-defined]
        assert max(part.stop - part.start for part in parts) == most
        assert sum(part.stop - part.start for part in parts) == 25


@pytest.mark.parametrize("error", [Unavailable("gone"), LimitExceeded("too many tokens", field="documents")])
def test_a_part_that_fails_once_the_list_is_whole_is_not_sent_again(error: SelvageError) -> None:
    """The whole list brings what it would have brought."""
    operation = methods.rerank(Nobody(), "a query", ["a"] * 2000)
    call = SplitCall(operation, seconds=1e9, retries=RetryPolicy(5))
    first, second = begun(call, 2)
    call.record_failure(first, InvalidInput("a part of a list", field="part_of_list"))
    call.record_failure(second, error)
    (whole,) = begun(call, 1)
    assert whole.part.size == 2000
    assert call.next_attempt() is None
    call.record_reply(whole, ANSWERS["RerankRequest"](whole.message))
    assert call.done


def test_each_text_counts_with_its_own_pair() -> None:
    parts = list(methods.classify(Nobody(), ["a"] * 300, ["b"] * 299 + ["c" * 300_000]).parts())
    assert [part.size for part in parts] == [299, 1]


def test_a_short_list_is_no_part_of_one() -> None:
    """It is sent once."""
    operation = methods.rerank(Nobody(), "a query", ["a", "b"])
    (part,) = operation.parts()
    assert not operation.message(part).part_of_list

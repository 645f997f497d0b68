"""Late chunking and spans in the frontend: which tokens belong to which span, windows, and what is refused by name."""

from typing import Any

import numpy as np
import pytest
from fakes import WORDS, FakeWorker, card, pipeline_of, words_of

from frontend_service.api.selvage_v1 import embed_rpcs
from frontend_service.domain.limits import Limits
from frontend_service.services.embed import EmbeddingService
from frontend_service.services.pipeline import Answer
from selvage.v1 import embedding_pb2 as pb
from shared.caller import RequestTerms
from shared.errors import InputTooLong, InvalidInput, LimitExceeded, ResultTooLarge, SelvageError, UnsupportedTask
from shared.jobs import RANGE_TIMES

LATER = RequestTerms.within(3600)
ABLE: dict[str, Any] = {"pools_spans": True}


def spans(*bounds: tuple[int, int]) -> pb.Spans:
    return pb.Spans(starts=[start for start, _ in bounds], ends=[end for _, end in bounds])


async def embed(worker: FakeWorker, limits: Limits | None = None, **fields: Any) -> Answer:
    request = embed_rpcs.embed_request_from_pb(pb.EmbedRequest(**fields))
    return await EmbeddingService(pipeline_of(worker, limits)).embed(request, LATER)


def numbers_of(answer: Answer) -> list[list[int]]:
    """What the fake worker says of each row: the first token of its sequence, where its range starts and ends."""
    assert answer.result.dense is not None
    return np.frombuffer(answer.result.dense.data, dtype="<f4").reshape(-1, 8)[:, :3].astype(int).tolist()


async def test_chunks_become_one_sequence_with_a_range_each() -> None:
    """Special tokens and the prompt once: before the first chunk, and behind the last one, to which they belong."""
    worker = FakeWorker(card(**ABLE, prompts={"passage": "passage : "}, max_tokens=20))
    answer = await embed(worker, texts=["a b ", "c", " d e f"], late_chunking=True, prompt_name="passage")
    assert words_of(worker.jobs[-1].tokens) == ["[CLS] passage : a b c d e f [SEP]"]
    assert [row[1:] for row in numbers_of(answer)] == [[0, 5], [5, 6], [6, 10]]
    assert answer.token_counts == (5, 1, 4)
    assert answer.tokens.total == 10


async def test_equal_texts_with_equal_spans_are_computed_once() -> None:
    """With other spans they are another input; every span has its own row, in the order of the request."""
    worker = FakeWorker(card(**ABLE))
    both, last = spans((0, 1), (2, 3)), spans((2, 3))
    answer = await embed(worker, texts=["a b", "c d", "a b", "a b"], spans=[both, last, both, last])
    assert words_of(worker.jobs[-1].tokens) == ["[CLS] a b [SEP]", "[CLS] c d [SEP]", "[CLS] a b [SEP]"]
    a, c = WORDS.index("a"), WORDS.index("c")
    assert numbers_of(answer) == [[a, 1, 2], [a, 2, 3], [c, 2, 3], [a, 1, 2], [a, 2, 3], [a, 2, 3]]


async def test_spans_of_windows_come_back_in_the_order_of_the_request() -> None:
    """Though windows take them by their starts; a window that no span needs is not read."""
    worker = FakeWorker(card(**ABLE, max_tokens=6))
    text = "a b c d e f g h i j"
    answer = await embed(worker, texts=[text], spans=[spans((16, 19), (0, 3), (10, 15), (0, 1))], window_overlap=1)
    assert words_of(worker.jobs[-1].tokens) == ["[CLS] a b c d [SEP]", "[CLS] e f g h [SEP]", "[CLS] h i j [SEP]"]
    a, e, h = (WORDS.index(letter) for letter in "aeh")
    assert numbers_of(answer) == [[h, 2, 4], [a, 1, 3], [e, 2, 5], [a, 1, 2]]


PLAIN = "a b c d e f"
REFUSED: list[tuple[type[SelvageError], str, str, dict[str, Any]]] = [
    (InvalidInput, "texts[1]", "no token", {"texts": ["a ", "", "b"], "late_chunking": True}),
    (InvalidInput, "texts[1]", "no token", {"texts": ["a ", "  ", "b"], "late_chunking": True}),
    (InvalidInput, "texts[0]", "no token", {"texts": ["a", "a b"], "late_chunking": True}),
    (InvalidInput, "spans[0]", "characters 1 to 2, has no token", {"spans": [spans((1, 2))]}),
    (InvalidInput, "spans[0]", "from 3 to 3, has no characters", {"spans": [spans((0, 1), (3, 3))]}),
    (InvalidInput, "spans[0]", "from 4 to 2, has no characters", {"spans": [spans((4, 2))]}),
    (InvalidInput, "spans[0]", "from 5 to 12, is not within the 11", {"spans": [spans((5, 12))]}),
    (InvalidInput, "spans[0]", "from -1 to 2, is not within", {"spans": [spans((-1, 2))]}),
    (InvalidInput, "spans[1]", "no spans", {"texts": ["a", "b"], "spans": [spans((0, 1)), spans()]}),
    (InvalidInput, "spans[0]", "2 starts and 1 ends", {"spans": [pb.Spans(starts=[0, 1], ends=[1])]}),
    (InvalidInput, "spans", "2 and 1", {"spans": [spans((0, 1))] * 2}),
    (InvalidInput, "spans", "both given", {"spans": [spans((0, 1))], "late_chunking": True}),
    (InvalidInput, "late_chunking", "needs texts", {"texts": [], "tokenized": [pb.TokenIds(ids=[4])]}),
    (InvalidInput, "late_chunking", "window_overlap", {"truncate": True}),
    (InvalidInput, "late_chunking", "QUERY", {"input_type": 1}),
    (InvalidInput, "late_chunking", "DENSE alone", {"outputs": [1, 3]}),
    (InvalidInput, "late_chunking", "DENSE alone", {"outputs": [3]}),
    (InvalidInput, "window_overlap", "at least 0", {"window_overlap": -1}),
    (InvalidInput, "window_overlap", "room for 8 tokens", {"texts": ["a "] * 9, "window_overlap": 8}),
    (InvalidInput, "window_overlap", "needs late_chunking or spans", {"late_chunking": False, "window_overlap": 1}),
    (InputTooLong, "texts", "102 tokens, the limit is 10; window_overlap", {"texts": ["a " * 99, "b"]}),
    (
        InputTooLong,
        "texts[1]",
        "has 9 tokens, a window has room for 8",
        {"texts": ["a ", "b " * 9], "window_overlap": 0},
    ),
    (InputTooLong, "texts[0]", "window_overlap", {"texts": ["a " * 9], "spans": [spans((0, 2))]}),
    (LimitExceeded, "spans[0]", f"{RANGE_TIMES} times", {"spans": [spans(*[(0, 11)] * 90)]}),
]


@pytest.mark.parametrize(("kind", "field", "words", "fields"), REFUSED)
async def test_what_has_no_meaning_is_refused_by_name(
    kind: type[SelvageError], field: str, words: str, fields: dict[str, Any]
) -> None:
    """A span without a token, one that is none of the text, an option that excludes spans; nothing is sent."""
    worker = FakeWorker(card(**ABLE))
    late = {} if "spans" in fields else {"late_chunking": True}
    with pytest.raises(kind) as refused:
        await embed(worker, **{"texts": [PLAIN]} | late | fields)
    assert refused.value.field == field
    assert words in refused.value.message
    assert not worker.jobs


async def test_a_span_of_a_prompt_that_is_not_pooled_is_refused() -> None:
    """A prompt may take more tokens by itself than before a text, as sentence-transformers counts them."""
    worker = FakeWorker(card(**ABLE, include_prompt=False))
    with pytest.raises(InvalidInput, match="leaves out of pooling") as refused:
        await embed(worker, texts=["b ", "c"], prompt="a a", late_chunking=True)
    assert refused.value.field == "texts[0]"


@pytest.mark.parametrize(
    ("limits", "fields", "kind", "field"),
    [
        (Limits(texts=2), {"texts": ["a ", "b ", "c"], "late_chunking": True}, LimitExceeded, "texts"),
        (Limits(spans=2), {"texts": ["a b"], "spans": [spans(*[(0, 1)] * 3)]}, LimitExceeded, "spans"),
        (Limits(text_bytes=4), {"texts": ["a ", "b ", "c"], "late_chunking": True}, LimitExceeded, "texts"),
        (Limits(message_bytes=66_000), {"texts": ["a"], "spans": [spans(*[(0, 1)] * 20)]}, ResultTooLarge, ""),
    ],
)
async def test_limits_are_those_of_the_request(
    limits: Limits, fields: dict[str, Any], kind: type[SelvageError], field: str
) -> None:
    """Of chunks and spans, of the document's bytes, of the reply."""
    worker = FakeWorker(card(**ABLE))
    with pytest.raises(kind) as refused:
        await embed(worker, limits, **fields)
    assert refused.value.field == field
    assert not worker.jobs


async def test_windows_count_as_tokens_before_they_are_made() -> None:
    """They may have a short text many times over: then none of them is made."""
    worker = FakeWorker(card(**ABLE, max_tokens=102))
    text, letters = "a " * 1100, [spans(*[(2 * number, 2 * number + 1) for number in range(1100)])]
    with pytest.raises(LimitExceeded, match="the request has 102102 tokens, the limit is 102101"):
        await embed(worker, Limits(request_tokens=102_101), texts=[text], spans=letters, window_overlap=99)
    assert not worker.jobs
    answer = await embed(worker, Limits(request_tokens=102_102), texts=[text], spans=letters, window_overlap=99)
    assert answer.tokens.lengths == (102,) * 1001


def test_spans_are_counted_before_they_are_read() -> None:
    """Even before it is looked whether they lie within their texts."""
    message = pb.EmbedRequest(texts=["a", "b"], spans=[spans(*[(0, 9)] * 3), spans((0, 9))])
    with pytest.raises(LimitExceeded, match="4 entries, the limit is 3") as refused:
        embed_rpcs.embed_request_from_pb(message, Limits(spans=3))
    assert refused.value.field == "spans"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pooling": "cls"}, "pooling is cls"),
        ({"pooling": "mean+lasttoken"}, "pooling is lasttoken"),
        ({}, "which this model has not"),
    ],
)
async def test_models_that_pool_no_spans_are_refused(changes: dict[str, Any], words: str) -> None:
    """The error says which pooling it is, where the card does."""
    worker = FakeWorker(card(**changes))
    for fields in ({"late_chunking": True}, {"spans": [spans((0, 1))]}):
        with pytest.raises(UnsupportedTask, match=words) as refused:
            await embed(worker, texts=["a b"], input_type=2, **fields)
        assert refused.value.field in fields
    assert not worker.jobs

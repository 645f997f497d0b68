"""Late chunking and spans through gRPC and HTTP: means of the token rows that transformers gives a document."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import aiohttp
import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from harness.stack import Stack
from selvage.v1 import embedding_pb2 as pb
from support.references import Calls, dense, mini_lm_path, words

CHUNKS = [
    "Berlin is the capital of Germany. ",
    "Its café scene — über 3.85 million people know it — is old.\n",
    "  The city",  # the space before a word, and a word that is cut in two
    "s are many; unbeliev",
    "able \N{GRINNING FACE}!",
    " " + words(40, seed=3),
]
TEXTS = ["The quiet harbour of Zürich.", words(30, seed=4)]
SPANS = [[(10, 17), (0, 3), (4, 17), (21, 28), (10, 28)], [(0, len(TEXTS[1]))]]
"""In no order, overlapping; the last but one of the first text is the end of a longer word."""
Span = tuple[int, int]
Rows = np.ndarray[Any, np.dtype[np.float32]]


class Paper:
    """Late chunking by transformers and numpy: rows of the whole document, then a mean for each chunk.

    As jina-ai/late-chunking's `chunked_pooling` does it, with the special tokens in the first and the last chunk as its
    `_extend_special_tokens` puts them there; spans have none of them, as in its `chunk_by_sentences`.
    """

    def __init__(self, path: str) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.model = AutoModel.from_pretrained(path, dtype=torch.float32).eval()

    @torch.inference_mode()
    def rows(self, ids: Sequence[int]) -> Rows:
        """The last hidden states [L, H]."""
        output: Rows = self.model(input_ids=torch.tensor([list(ids)])).last_hidden_state[0].numpy()
        return output

    def encode(self, text: str) -> tuple[list[int], list[Span]]:
        """Token ids without special ones, and where each begins and ends."""
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return encoded["input_ids"], encoded["offset_mapping"]

    def framed(self, ids: Sequence[int]) -> list[int]:
        return [self.tokenizer.cls_token_id, *ids, self.tokenizer.sep_token_id]

    def spans(self, text: str, bounds: Sequence[Span], prompt: str = "") -> Rows:
        """A vector for each span, in characters of the text."""
        ids, offsets = self.encode(prompt + text)
        rows, shift = self.rows(self.framed(ids))[1:-1], len(prompt)
        chosen = [[start <= stop - 1 - shift < end for _, stop in offsets] for start, end in bounds]
        return unit(np.array([rows[mask].mean(axis=0) for mask in chosen]))

    def chunks(self, texts: Sequence[str], prompt: str = "") -> Rows:
        """A vector for each chunk."""
        ids, offsets = self.encode(prompt + "".join(texts))
        rows = self.rows(self.framed(ids))
        ends = [len(prompt) + end for end in accumulate(map(len, texts))]
        stops = [1 + sum(stop <= end for _, stop in offsets) for end in ends]
        annotations = [*pairwise([0, *stops[:-1], len(rows)])]
        return unit(np.array([rows[start:end].sum(axis=0) / (end - start) for start, end in annotations]))

    def windows(self, texts: Sequence[str], limit: int, overlap: int) -> Rows:
        """A vector for each chunk: of the first window that has it as a whole, one chunk after the other."""
        ids, offsets = self.encode("".join(texts))
        ends = [sum(stop <= end for _, stop in offsets) for end in accumulate(map(len, texts))]
        begin, rows, pooled = 0, None, []
        for start, stop in pairwise([0, *ends]):
            if rows is None or stop > begin + limit - 2:
                begin = max(start - overlap, stop - (limit - 2), 0) if rows is not None else 0
                rows = self.rows(self.framed(ids[begin : begin + limit - 2]))
            first = 0 if start == 0 else 1 + start - begin
            last = len(rows) if stop == len(ids) else 1 + stop - begin
            pooled.append(rows[first:last].mean(axis=0))
        return unit(np.array(pooled))


def unit(rows: Rows) -> Rows:
    scaled: Rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return scaled


Embed = Callable[..., Awaitable[Rows]]


@pytest.fixture(scope="module")
def paper() -> Paper:
    return Paper(mini_lm_path())


@pytest.fixture(params=["grpc", "http"])
def embed(request: pytest.FixtureRequest, pair: Stack, calls: Calls, session: aiohttp.ClientSession) -> Embed:
    """Dense rows of texts by each way in; `spans` as a list for each text."""

    async def by_grpc(texts: Sequence[str], spans: Any = (), **options: Any) -> Rows:
        messages = [pb.Spans(starts=[one for one, _ in pairs], ends=[end for _, end in pairs]) for pairs in spans]
        return dense(await calls.embedding.Embed(pb.EmbedRequest(texts=texts, spans=messages, **options)))

    async def by_http(texts: Sequence[str], **options: Any) -> Rows:
        body = {"input": list(texts)} | options
        async with session.post(f"{pair.frontends[0].http_url}/v1/embeddings", json=body) as reply:
            assert reply.status == 200, await reply.text()
            data = (await reply.json())["data"]
        assert [entry["index"] for entry in data] == list(range(len(data)))
        return np.array([entry["embedding"] for entry in data], dtype=np.float32)

    return {"grpc": by_grpc, "http": by_http}[request.param]


async def test_chunks_are_means_of_the_documents_rows(embed: Embed, paper: Paper) -> None:
    """Letters of several bytes, a word cut in two, spaces at either side; and not what each chunk is alone."""
    rows = await embed(CHUNKS, late_chunking=True)
    assert np.abs(rows - paper.chunks(CHUNKS)).max() < 1e-5
    assert np.abs(rows - await embed(CHUNKS)).max() > 0.01


async def test_spans_are_means_of_their_texts_rows(embed: Embed, paper: Paper) -> None:
    """In the order of the request, one text after the other."""
    expected = [paper.spans(text, bounds) for text, bounds in zip(TEXTS, SPANS, strict=True)]
    assert np.abs(await embed(TEXTS, spans=SPANS) - np.concatenate(expected)).max() < 1e-5


async def test_a_prompt_is_read_once(embed: Embed, paper: Paper) -> None:
    """Before the first chunk, to which it belongs; characters of spans do not count it."""
    prompt = "search document: "
    rows = await embed(CHUNKS, late_chunking=True, prompt=prompt)
    assert np.abs(rows - paper.chunks(CHUNKS, prompt)).max() < 1e-5
    rows = await embed(TEXTS[:1], spans=SPANS[:1], prompt=prompt)
    assert np.abs(rows - paper.spans(TEXTS[0], SPANS[0], prompt)).max() < 1e-5


async def test_a_long_document_is_read_in_windows(embed: Embed, paper: Paper) -> None:
    """Three times the limit of 256 tokens; every chunk of the first window that has it as a whole."""
    chunks = [words(7 + number % 50, seed=number) + ". " for number in range(24)]
    rows = await embed(chunks, late_chunking=True, window_overlap=48)
    assert np.abs(rows - paper.windows(chunks, 256, 48)).max() < 1e-5


async def test_neighbours_change_no_chunk(calls: Calls) -> None:
    """Sixty-three other documents and texts on their way at the same time."""
    request = pb.EmbedRequest(texts=CHUNKS, late_chunking=True)
    alone = dense(await calls.embedding.Embed(request))
    for count in (1, 63):
        others = [
            pb.EmbedRequest(texts=[words(3 + number, seed=number) + " ", "end"], late_chunking=bool(number % 2))
            for number in range(count)
        ]
        replies = await asyncio.gather(*(calls.embedding.Embed(other) for other in (*others, request)))
        assert np.abs(dense(replies[-1]) - alone).max() < 1e-6

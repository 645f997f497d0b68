"""What the frontend asks of a worker, and what it refuses before that."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fakes import WORDS, service, tokenizer_json

from frontend_service import postprocess
from frontend_service.api.selvage_v1 import codec, embed_rpcs
from frontend_service.domain.limits import Limits
from frontend_service.domain.requests import DetokenizeRequest, TokenizeRequest
from frontend_service.services.embed import EmbeddingService
from frontend_service.services.models import ModelService
from frontend_service.services.rank import RankingService
from frontend_service.tokenizing.tokenizer import ModelTexts, ModelTokenizer
from frontend_service.tokenizing.tokens import Chunks
from selvage.v1 import embedding_pb2, ranking_pb2, vectors_pb2
from shared.caller import RequestTerms
from shared.errors import (
    Internal,
    InvalidInput,
    LimitExceeded,
    ResultTooLarge,
    UnsupportedDimensions,
)
from shared.jobs import Encode
from shared.vectors import DataType, OutputKind

LATER = RequestTerms.within(3600)


def embed(**fields: Any) -> Any:
    return embed_rpcs.embed_request_from_pb(embedding_pb2.EmbedRequest(**{"texts": ["a", "b c"]} | fields))


def rerank(**fields: Any) -> Any:
    message = ranking_pb2.RerankRequest(**{"query": "a", "documents": ["b", "c d", "e", "f"]} | fields)
    return codec.rerank_request_from_pb(message)


async def test_a_request_overrides_what_the_model_chooses() -> None:
    made, worker = service(prompts={"query": "query : "}, include_prompt=False)
    message = embed(outputs=[1, 3], dimensions=4, normalize=False, data_type=5, prompt_name="query")
    await EmbeddingService(made).embed(message, LATER)
    assert worker.jobs[0].work == Encode(
        outputs=frozenset({OutputKind.DENSE, OutputKind.MULTI_VECTOR}),
        dimensions=4,
        normalize=False,
        normalize_tokens=False,
        data_type=DataType.BINARY,
    )
    assert worker.jobs[0].prompt_lengths == (3, 3)


async def test_allowed_dimensions_come_from_the_files() -> None:
    made, _ = service(allowed_dimensions=(2, 4))
    await EmbeddingService(made).embed(embed(dimensions=4), LATER)
    with pytest.raises(UnsupportedDimensions, match="2, 4, 8"):
        await EmbeddingService(made).embed(embed(dimensions=5), LATER)


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        (Limits(texts=1), "texts"),
        (Limits(text_bytes=2), "texts[1]"),
        (Limits(request_tokens=6), ""),
    ],
)
async def test_limits_are_named(limits: Limits, field: str) -> None:
    made, worker = service(limits)
    with pytest.raises(LimitExceeded) as raised:
        await EmbeddingService(made).embed(embed(), LATER)
    assert raised.value.field == field
    assert worker.jobs == []


@pytest.mark.parametrize(
    ("options", "rows"),
    [({}, 2_000), ({"data_type": 2}, 4_000), ({"data_type": 4}, 5_000), ({"dimensions": 2}, 8_000)],
)
async def test_a_text_whose_rows_alone_do_not_fit_is_named(options: dict[str, Any], rows: int) -> None:
    """With the size, the limit, and what helps: each of these lets more tokens through. A text more is not to blame."""
    made, worker = service(Limits(message_bytes=130_000), max_tokens=100_000)
    texts = ["a", "a " * rows, "a " * (rows + 500)]
    with pytest.raises(ResultTooLarge, match=r"texts\[2\] alone would have \d+ bytes, .* 130000 .* 64464;") as raised:
        await EmbeddingService(made).embed(embed(texts=texts, outputs=[3], **options), LATER)
    assert raised.value.field == "texts[2]"
    assert all(word in raised.value.message for word in ("FLOAT16", "INT8", "dimensions", "fewer tokens"))
    assert worker.jobs == []
    with pytest.raises(ResultTooLarge, match="fewer texts") as raised:
        await EmbeddingService(made).embed(embed(texts=[texts[1]] * 5, outputs=[3], **options), LATER)
    assert raised.value.field == ""
    await EmbeddingService(made).embed(embed(texts=texts[:2], outputs=[3], **options), LATER)


async def test_prompts_count_against_the_limits() -> None:
    """A literal prompt cannot smuggle in more than a text may hold, nor multiply it."""
    made, _ = service(Limits(text_bytes=1000, message_bytes=70_000))
    with pytest.raises(LimitExceeded) as raised:
        await EmbeddingService(made).embed(embed(prompt="x" * 1001), LATER)
    assert raised.value.field == "prompt"
    with pytest.raises(LimitExceeded) as raised:
        await EmbeddingService(made).embed(embed(texts=["a", "b" * 600], prompt="x" * 500), LATER)
    assert raised.value.field == "texts[1]"
    with pytest.raises(LimitExceeded, match="together"):
        await EmbeddingService(made).embed(embed(texts=["a"] * 80, prompt="x" * 900), LATER)
    with pytest.raises(LimitExceeded) as raised:
        await RankingService(made).rerank(rerank(instruction="x" * 1001), LATER)
    assert raised.value.field == "instruction"


async def test_tokenising_stops_when_the_caller_is_gone() -> None:
    """After the chunk under way; the thread is free for others."""
    made, worker = service(max_tokens=10_000)
    text = "a " * 4_000
    waiting = asyncio.ensure_future(EmbeddingService(made).embed(embed(texts=[text] * 2000, outputs=[1]), LATER))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    await EmbeddingService(made).embed(embed(), LATER)
    assert [len(job.tokens) for job in worker.jobs] == [2]


async def test_requests_take_turns_chunk_by_chunk() -> None:
    """A new request waits for a chunk of each that is there, not for their ends; an error ends its request alone."""
    made, _ = service()
    order = list[str]()

    def chunks(name: str, count: int) -> Chunks[str]:
        for number in range(count):
            order.append(name)
            if name == "wrong":
                raise ValueError(name)
            yield number
        return name

    running = [asyncio.ensure_future(made.in_chunks(chunks(*named))) for named in (("a", 40), ("b", 40), ("wrong", 9))]
    await made.in_thread(lambda: None)  # behind the first chunk of each
    assert await made.in_chunks(chunks("c", 1)) == "c"
    assert order.index("c") < 30
    outcomes = await asyncio.gather(*running, return_exceptions=True)
    assert outcomes[:2] == ["a", "b"]
    assert isinstance(outcomes[2], ValueError)
    assert (order.count("a"), order.count("b"), order.count("wrong")) == (40, 40, 1)


async def test_a_text_at_which_the_tokenizer_panics_fails_alone() -> None:
    """Internal, at once or in turns, and the next request is served. Here it is a limit of the regex engine."""
    made, worker = service()
    panics = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    content = json.dumps(json.loads(tokenizer_json()) | {"pre_tokenizer": panics}).encode()
    worker.served = replace(worker.served, texts=ModelTexts(tokenizer=ModelTokenizer(content, worker.served.card)))
    for text in ("a" * 40 + "b", "a" * 4000 + "b"):
        with pytest.raises(Internal, match="the tokenizer failed on this request"):
            await ModelService(made).tokenize(TokenizeRequest(texts=(text,)))
    assert len((await ModelService(made).tokenize(TokenizeRequest(texts=("c",)))).texts) == 1


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        (Limits(texts=2), "tokenized"),
        (Limits(request_tokens=5), "tokenized"),
        (Limits(text_bytes=3), "tokenized[1]"),
    ],
)
async def test_ids_to_write_are_limited(limits: Limits, field: str) -> None:
    """Lists, ids of one and ids of all; an id that the model lacks is looked for later."""
    made, _ = service(limits)
    with pytest.raises(LimitExceeded) as raised:
        await ModelService(made).detokenize(DetokenizeRequest(tokenized=((-1,), (5,) * 4, (6,))))
    assert raised.value.field == field


async def test_many_ids_are_written_in_turns_and_within_a_reply() -> None:
    made, _ = service(Limits(message_bytes=200_000))
    some = ((4,) * 3000, *((number,) for number in range(4, 10)), (5,) * 9000, (6,) * 10)
    written = await ModelService(made).detokenize(DetokenizeRequest(tokenized=some))
    assert [text.split() for text in written.texts] == [[WORDS[number] for number in ids] for ids in some]
    with pytest.raises(ResultTooLarge, match="fewer ids"):
        await ModelService(made).detokenize(DetokenizeRequest(tokenized=some * 9))


@pytest.mark.parametrize(
    ("limits", "rows", "dimensions", "words", "field"),
    [
        (Limits(similarities=900), 1000, 64, None, ""),
        (Limits(vector_elements=900), 40, 64, None, ""),
        (Limits(), 1, 16_392, "queries has rows of 16392 dimensions, the limit is 16384", "queries.dimensions"),
    ],
    ids=["products of rows", "numbers of a side", "the width that the worker's kernels want"],
)
async def test_given_vectors_are_bounded_by_what_they_cost(
    limits: Limits, rows: int, dimensions: int, words: str | None, field: str
) -> None:
    side = vectors_pb2.MultiVectors(
        data_type=5, dimensions=dimensions, lengths=[rows], data=bytes(dimensions // 8 * rows)
    )
    request = codec.max_sim_request_from_pb(ranking_pb2.MaxSimRequest(queries=side, documents=side))
    with pytest.raises(LimitExceeded, match=words) as refused:
        await RankingService(service(limits)[0]).max_sim(request, LATER)
    assert not field or refused.value.field == field


def test_ranking_is_stable_and_copes_with_the_lowest_scores() -> None:
    scores = np.array([-1e9, 2, 2, -5], dtype="<f4").tobytes()
    assert [index for index, _ in postprocess.rank(scores, scores, None)] == [1, 2, 3, 0]
    assert postprocess.rank(scores, scores, 1) == [(1, 2.0)]


@pytest.mark.parametrize(
    ("fields", "needed"),
    [
        ({"dimensions": 4}, "DENSE or MULTI_VECTOR"),
        ({"normalize": True}, "DENSE or MULTI_VECTOR"),
        ({"data_type": 4}, "DENSE or MULTI_VECTOR"),
        ({"return_token_ids": True}, "MULTI_VECTOR"),
    ],
)
async def test_options_of_rows_need_rows(fields: dict[str, Any], needed: str) -> None:
    """Sparse vectors have no dimensions to cut; nothing is dropped in silence."""
    made, worker = service(outputs=(OutputKind.SPARSE,), dimensions=0, multi_vector_dimensions=0)
    with pytest.raises(InvalidInput, match=f"{next(iter(fields))} needs the output {needed}"):
        await EmbeddingService(made).embed(embed(**fields), LATER)
    assert worker.jobs == []

"""A listwise reranker through every way in: scores are those of the model's own code, in one block and in several."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import numpy as np
import pytest

from harness.stack import Stack, stack
from selvage import Client, Engine, errors
from selvage.v1 import embedding_pb2, model_pb2, ranking_pb2
from selvage.v1 import vectors_pb2 as v
from support import listwise
from support.listwise import DOCUMENT_MARKER, TEXTS, Twin
from support.references import Calls, near, refusal
from tei.v1 import tei_pb2, tei_pb2_grpc

TOLERANCE = 1e-4
QUERY = "which boats lie in the harbour?"
MANY = [f"document {number} of the harbour" for number in range(130)]
"""More than a block has."""
LONG = [f"{number} " + "the ranking of passages " * (40 + 80 * number) for number in range(9)]
"""Some over the limit of a document, all over that of a block."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return listwise.write(tmp_path_factory.mktemp("listwise") / "tiny-listwise")


@pytest.fixture(scope="module")
def twin(folder: Path) -> Twin:
    return Twin.read(folder)


@pytest.fixture(scope="module")
async def pair(folder: Path) -> AsyncIterator[Stack]:
    """Both services; the worker cuts texts into small pieces."""
    async with stack(str(folder), worker={"chunk-tokens": 64}, frontend={"http-listen": "127.0.0.1:0"}) as made:
        yield made


@pytest.fixture(scope="module")
async def http(pair: Stack) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(pair.frontends[0].http_url) as session:
        yield session


def in_order(places: Sequence[int], scores: Sequence[float]) -> np.ndarray:
    """Scores by the place of their document; they must come best first."""
    assert list(scores) == sorted(scores, reverse=True)
    assert sorted(places) == list(range(len(places)))
    return np.array([score for _, score in sorted(zip(places, scores, strict=True))])


async def ranked(pair: Stack, query: str, documents: Sequence[str], **fields: Any) -> np.ndarray:
    asked = ranking_pb2.RerankRequest(query=query, documents=documents, **fields)
    results = (await Calls(pair.channel).ranking.Rerank(asked)).results
    return in_order([each.index for each in results], [each.score for each in results])


@pytest.mark.parametrize("documents", [TEXTS, TEXTS[:1], MANY, LONG], ids=["one block", "one document", "many", "long"])
async def test_rerank(pair: Stack, twin: Twin, documents: list[str]) -> None:
    """With one block and with several, by the number of documents and by their tokens."""
    blocks = twin.blocks(QUERY, documents)[1]
    assert (len(blocks) > 1) == (documents in (MANY, LONG))
    near(await ranked(pair, QUERY, documents, truncate=True), twin.rerank(QUERY, documents), TOLERANCE)


async def test_instructions_and_markers_of_callers(pair: Stack, twin: Twin) -> None:
    """An instruction comes into the text; a marker of a caller is taken out of it."""
    near(await ranked(pair, QUERY, TEXTS, instruction="be strict"), twin.rerank(QUERY, TEXTS, "be strict"), TOLERANCE)
    marked = [f"{DOCUMENT_MARKER}{text}{DOCUMENT_MARKER}" for text in TEXTS[:3]]
    near(await ranked(pair, QUERY, marked), twin.rerank(QUERY, TEXTS[:3]), TOLERANCE)


async def test_score(pair: Stack, twin: Twin) -> None:
    """Each query with all documents in a context of their own, or pairs; usage counts every block."""
    calls, queries = Calls(pair.channel), [QUERY, "bread"]
    reply = await calls.ranking.Score(ranking_pb2.ScoreRequest(queries=queries, documents=TEXTS))
    near(np.reshape(reply.scores, (2, -1)), np.stack([twin.rerank(query, TEXTS) for query in queries]), TOLERANCE)
    assert reply.usage.prompt_tokens == sum(
        len(twin.tokenizer(twin.prompt(query, TEXTS)).input_ids) for query in queries
    )
    assert list(reply.usage.token_counts) == [len(twin.tokenizer(text).input_ids) for text in (*queries, *TEXTS)]
    pairs = ranking_pb2.ScoreRequest(queries=queries, documents=TEXTS[:2], layout=v.LAYOUT_PAIRS)
    wanted = [twin.rerank(query, [text])[0] for query, text in zip(queries, TEXTS, strict=False)]
    near((await calls.ranking.Score(pairs)).scores, wanted, TOLERANCE)


async def test_tei(pair: Stack, twin: Twin) -> None:
    stub: Any = tei_pb2_grpc.RerankStub(pair.channel)
    ranks = (await stub.Rerank(tei_pb2.RerankRequest(query=QUERY, texts=TEXTS))).ranks
    wanted = twin.rerank(QUERY, TEXTS)
    near(in_order([each.index for each in ranks], [each.score for each in ranks]), wanted, TOLERANCE)
    info: Any = tei_pb2_grpc.InfoStub(pair.channel)
    assert (await info.Info(tei_pb2.InfoRequest())).model_type == tei_pb2.MODEL_TYPE_RERANKER


async def test_http(http: aiohttp.ClientSession, twin: Twin) -> None:
    """text-embeddings-inference, Cohere, Jina, NVIDIA and vLLM; the list of models."""

    async def ask(path: str, body: Any = None) -> Any:
        async with http.request("GET" if body is None else "POST", path, json=body) as reply:
            assert reply.status == 200, await reply.text()
            return await reply.json()

    wanted = twin.rerank(QUERY, TEXTS)
    told = await ask("/rerank", {"query": QUERY, "texts": TEXTS})
    near(in_order([each["index"] for each in told], [each["score"] for each in told]), wanted, TOLERANCE)
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        told = (await ask(path, {"model": "tiny-listwise", "query": QUERY, "documents": TEXTS}))["results"]
        scores = in_order([each["index"] for each in told], [each["relevance_score"] for each in told])
        near(scores, wanted, TOLERANCE)
    passages = [{"text": text} for text in TEXTS]
    told = (await ask("/v1/ranking", {"query": {"text": QUERY}, "passages": passages}))["rankings"]
    near(in_order([each["index"] for each in told], [each["logit"] for each in told]), wanted, TOLERANCE)
    for path in ("/score", "/v1/score"):
        told = (await ask(path, {"text_1": QUERY, "text_2": TEXTS}))["data"]
        near([each["score"] for each in told], wanted, TOLERANCE)
    (entry,) = (await ask("/v1/models"))["data"]
    assert (entry["tasks"], entry["outputs"], entry["max_model_len"]) == (["rerank"], [], 4096)
    assert "reranker" in (await ask("/info"))["model_type"]


async def test_long_texts_are_refused_unless_they_may_be_cut(pair: Stack) -> None:
    """As everywhere here; the model's own code cuts them in silence."""
    with pytest.raises(grpc.aio.AioRpcError, match="the limit is 2048; truncate would cut it") as refused:
        await ranked(pair, QUERY, LONG)
    assert refusal(refused.value)[1:] == ("INPUT_TOO_LONG", "documents[6]")


async def test_the_card_tells_it_and_nothing_is_embedded(pair: Stack) -> None:
    calls = Calls(pair.channel)
    card = (await calls.model.GetModel(model_pb2.GetModelRequest())).card
    (listed,) = (await calls.model.ListModels(model_pb2.ListModelsRequest())).cards
    assert listed == card
    assert (list(card.methods), list(card.outputs)) == ([v.SCORING_METHOD_LISTWISE], [])
    assert (card.listwise.block_documents, card.listwise.dimensions) == (125, listwise.WIDTH)
    with pytest.raises(grpc.aio.AioRpcError, match="the model is not for EMBED") as refused:
        await calls.embedding.Embed(embedding_pb2.EmbedRequest(texts=["a"]))
    assert refusal(refused.value)[1] == "UNSUPPORTED_TASK"


def test_client_and_engine(folder: Path, pair: Stack, twin: Twin) -> None:
    """The same calls as for any reranker; without services the blocks are whole."""
    expected = twin.rerank(QUERY, TEXTS)
    with Client(pair.frontends[0].address) as client, Engine(folder) as engine:
        for each in (client, engine):
            results = each.rerank(QUERY, TEXTS, method="listwise")
            near(in_order([one.index for one in results], [one.score for one in results]), expected, TOLERANCE)
            with pytest.raises(errors.UnsupportedTask):
                each.embed("a")
        told = client.model().listwise
        assert told is not None
        assert told == engine.model().listwise
        assert told.document_marker == DOCUMENT_MARKER

"""A repository with an adapter for each task, through both services: the task chooses the adapter and the prompt."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import numpy as np
import pytest

from harness.stack import Stack, stack
from selvage import Engine, UnsupportedTask
from selvage.v1 import embedding_pb2 as pb
from selvage.v1 import model_pb2, ranking_pb2, vectors_pb2
from support.jina_v5 import NANO, TASKS, own_rows, write_v5
from support.references import Calls, dense, refusal

TEXTS = ["w1 w2 w3", "w9 w8 w7 w6 w5 w4", "w11"]
NAME = "jina-embeddings-v5-text-nano"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_v5(tmp_path_factory.mktemp("models") / NAME, NANO)


@pytest.fixture(scope="module")
async def pair(folder: Path, nursery: object) -> AsyncIterator[Stack]:
    """Both services; nothing but the folder is named."""
    async with stack(str(folder), frontend={"http-listen": "127.0.0.1:0"}) as running:
        yield running


async def asked(pair: Stack, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
    """The status and the body of a reply over HTTP."""
    method = "GET" if body is None else "POST"
    async with (
        aiohttp.ClientSession(pair.frontends[0].http_url) as session,
        session.request(method, path, json=body) as reply,
    ):
        return reply.status, await reply.json()


@pytest.mark.parametrize("task", TASKS)
async def test_the_task_of_a_request_chooses_its_adapter(pair: Stack, folder: Path, task: str) -> None:
    """Over HTTP by the task, as a query and as a document; over gRPC by the name of the task's model."""
    for prompt, input_type in (("query", vectors_pb2.INPUT_TYPE_QUERY), ("document", 0)):
        wanted = own_rows(folder, task, TEXTS, prompt).numpy()
        body = {"input": TEXTS, "task": task} | ({"prompt_name": "query"} if prompt == "query" else {})
        status, reply = await asked(pair, "/v1/embeddings", body)
        assert (status, reply["model"]) == (200, f"{NAME}-{task}")
        assert np.abs(np.array([entry["embedding"] for entry in reply["data"]]) - wanted).max() < 1e-5
        request = pb.EmbedRequest(texts=TEXTS, model=f"{NAME}-{task}", input_type=input_type)
        assert np.abs(dense(await Calls(pair.channel).embedding.Embed(request)) - wanted).max() < 1e-5


async def test_requests_of_all_tasks_at_once_get_their_own_rows(pair: Stack, folder: Path) -> None:
    """They share steps, and a job of several callers has texts of one task alone."""
    bodies = [{"input": TEXTS, "task": task} for task in TASKS for _ in range(5)]
    replies = await asyncio.gather(*(asked(pair, "/v1/embeddings", body) for body in bodies))
    for body, (_, reply) in zip(bodies, replies, strict=True):
        rows = np.array([entry["embedding"] for entry in reply["data"]])
        assert np.abs(rows - own_rows(folder, str(body["task"]), TEXTS).numpy()).max() < 1e-5


async def test_jina_s_names_of_tasks(pair: Stack, folder: Path) -> None:
    """Of retrieval each side has a name of its own."""
    for task, prompt in (("retrieval.query", "query"), ("retrieval.passage", "document")):
        _, reply = await asked(pair, "/v1/embeddings", {"input": TEXTS, "task": task, "model": NAME})
        rows = np.array([entry["embedding"] for entry in reply["data"]])
        assert np.abs(rows - own_rows(folder, "retrieval", TEXTS, prompt).numpy()).max() < 1e-5


async def test_models_say_which_tasks_there_are(pair: Stack) -> None:
    calls = Calls(pair.channel)
    cards = (await calls.model.ListModels(model_pb2.ListModelsRequest())).cards
    names = {task: f"{NAME}-{task}" for task in TASKS}
    assert {card.id: dict(card.task_models) for card in cards} == {
        NAME: names,
        **{name: {task: name} for task, name in names.items()},
    }
    assert len({card.fingerprint for card in cards}) == len(cards)
    card = (await calls.model.GetModel(model_pb2.GetModelRequest())).card
    assert (card.id, dict(card.task_models)) == (NAME, names)
    assert (await asked(pair, f"/v1/models/{NAME}"))[1]["task_models"] == names


async def test_a_request_without_a_task_is_refused_with_those_there_are(pair: Stack) -> None:
    calls = Calls(pair.channel)
    for call in (
        calls.embedding.Embed(pb.EmbedRequest(texts=TEXTS)),
        calls.ranking.Rerank(ranking_pb2.RerankRequest(query="w1", documents=TEXTS, model=NAME)),
    ):
        with pytest.raises(grpc.aio.AioRpcError, match=f"name the model of a task: {NAME}-classification, ") as refused:
            await call
        assert refusal(refused.value)[1:] == ("UNSUPPORTED_TASK", "model")
    status, reply = await asked(pair, "/v1/embeddings", {"input": TEXTS, "task": "separation"})
    listed = "classification, clustering, retrieval, text-matching"
    assert (status, reply["error"]["param"]) == (400, "task")
    assert reply["error"]["message"].endswith(f"the model has no task 'separation'; it has {listed}")


async def test_documents_are_ranked_by_the_model_of_a_task(pair: Stack, folder: Path) -> None:
    status, reply = await asked(
        pair, "/v1/rerank", {"query": TEXTS[0], "documents": TEXTS, "model": f"{NAME}-retrieval"}
    )
    query, documents = (own_rows(folder, "retrieval", TEXTS, prompt).numpy() for prompt in ("query", "document"))
    scores = {entry["index"]: entry["relevance_score"] for entry in reply["results"]}
    assert status == 200
    assert np.abs(np.array([scores[place] for place in range(len(TEXTS))]) - documents @ query[0]).max() < 1e-5


@pytest.mark.usefixtures("logs_as_they_were")
def test_the_engine_and_the_client_name_the_model_of_a_task(folder: Path) -> None:
    with Engine(folder) as engine:
        rows = engine.embed(TEXTS, model=f"{NAME}-clustering", input_type="query")
        assert np.abs(rows - own_rows(folder, "clustering", TEXTS, "query").numpy()).max() < 1e-5
        assert engine.model().task_models["clustering"] == f"{NAME}-clustering"
        with pytest.raises(UnsupportedTask, match="has an adapter for each task, and no default"):
            engine.embed(TEXTS)

"""Health, reflection, request ids, logs, fairness and cancellation."""

import asyncio
import json
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from harness.stack import Stack
from selvage.v1 import embedding_pb2, model_pb2, ranking_pb2
from shared.server.options import PUBLIC_SERVICES
from support.references import Calls, eventually, load_of, until_queued
from support.traffic import texts

SERVING = health_pb2.HealthCheckResponse.SERVING


async def test_health_by_service_name(pair: Stack) -> None:
    health: Any = health_pb2_grpc.HealthStub(pair.channel)
    for service in ("", *PUBLIC_SERVICES):
        assert (await health.Check(health_pb2.HealthCheckRequest(service=service))).status == SERVING


async def test_reflection_lists_the_services(pair: Stack) -> None:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(pair.channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    async for response in stub.ServerReflectionInfo(iter([request])):
        listed = {service.name for service in response.list_services_response.service}
        assert set(PUBLIC_SERVICES) <= listed
        break


async def test_a_request_id_runs_through_both_logs_and_no_text_does(pair: Stack, calls: Calls) -> None:
    """The caller's id comes back and stands in the log of the frontend and of the worker."""
    call = calls.embedding.Embed(
        embedding_pb2.EmbedRequest(texts=["zanzibar"]), metadata=(("x-request-id", "my-request-7"),)
    )
    await call
    assert ("x-request-id", "my-request-7") in tuple(await call.trailing_metadata())
    for member in pair.members:
        await eventually(lambda m=member: any(event.get("request_id") == "my-request-7" for event in m.events))
        assert "zanzibar" not in "\n".join(member.log)


async def test_the_bound_address_is_the_first_line_logged(pair: Stack) -> None:
    """As JSON, so that whoever started it with port 0 can read it."""
    for member in pair.members:
        assert json.loads(member.log[0])["address"] == member.address


async def test_the_card_tells_limits_and_methods(calls: Calls) -> None:
    model = await calls.model.GetModel(model_pb2.GetModelRequest(model="all-MiniLM-L6-v2"))
    listed = await calls.model.ListModels(model_pb2.ListModelsRequest())
    assert [model.card] == list(listed.cards)
    assert (model.card.dimensions, model.card.max_tokens, model.card.pooling) == (384, 256, "mean")
    assert (model.limits.texts, model.limits.queued_tokens) == (4096, 8_388_608)
    assert len(model.card.fingerprint) == 64


MANY = 16_000
"""Documents that keep a tiny model busy for most of a second, on a fast processor too."""


def big_rerank(documents: int) -> ranking_pb2.RerankRequest:
    return ranking_pb2.RerankRequest(query="w1 w2", documents=texts(documents, 14, seed=1), method=2)


async def test_a_small_embed_overtakes_a_big_rerank(tiny: Stack) -> None:
    """Sent while thousands of documents are scored, it is answered while some of them still wait, on any processor."""
    calls = Calls(tiny.channel)
    rerank = asyncio.ensure_future(calls.ranking.Rerank(big_rerank(MANY), timeout=300))
    await until_queued(tiny)
    await calls.embedding.Embed(embedding_pb2.EmbedRequest(texts=["a small text"]))
    assert not rerank.done()
    assert (await load_of(tiny)).queued_tokens > 0
    response = await rerank
    assert len(response.results) == MANY
    assert response.usage.prompt_tokens == MANY * 16 + 7  # three of the prompt for queries


async def test_cancelling_a_rerank_frees_the_worker_within_a_step(tiny: Stack) -> None:
    """Nothing of it waits any more by the time that the next small embed is answered."""
    calls = Calls(tiny.channel)
    rerank = calls.ranking.Rerank(big_rerank(MANY), timeout=300)
    waiting = asyncio.ensure_future(rerank.code())
    await until_queued(tiny)
    rerank.cancel()
    assert await waiting is grpc.StatusCode.CANCELLED
    await calls.embedding.Embed(embedding_pb2.EmbedRequest(texts=["one step later"]))
    load = await load_of(tiny)
    assert (load.queued_tokens, load.queued_jobs) == (0, 0)

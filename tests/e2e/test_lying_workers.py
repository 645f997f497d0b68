"""Workers that send NaN, or other bytes than were asked for: a frontend refuses them, and says so once."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import pytest

from harness.member import ServiceProcess
from selvage.v1 import classification_pb2, embedding_pb2, ranking_pb2
from selvage.v1 import vectors_pb2 as v
from shared.errors import InvalidInput, Overloaded, WorkerUnavailable
from shared.load import Load
from shared.server.options import channel_options
from support.lying_worker import ENDING_LIES, HARMLESS, LIES, TAMED, WIDTH, Lie, LyingWorker, never_serving
from support.references import Calls, eventually, refusal
from support.scraping import memory, scrape

TEXTS = ["w1 w2 w3", "w4 w5 w6 w7", "w8"]
OUTPUTS = {"dense": v.OUTPUT_KIND_DENSE, "sparse": v.OUTPUT_KIND_SPARSE, "tokens": v.OUTPUT_KIND_MULTI_VECTOR}
GROWTH = 300 * 1024 * 1024
"""Most bytes of memory that all lies together may cost the frontend at any moment."""


@dataclass(frozen=True, slots=True)
class Deceived:
    """A frontend and its workers, by their models' names."""

    frontend: ServiceProcess
    workers: dict[str, LyingWorker]
    calls: Calls
    idle: int

    def lines(self, worker: LyingWorker, *events: str) -> list[dict[str, Any]]:
        """The lines of the log about a worker."""
        return [
            event
            for event in self.frontend.events
            if event.get("target") == worker.address and (not events or event["event"] in events)
        ]

    async def ask(self, kind: str, name: str) -> Any:
        """A reply to a call of this kind, from the worker with this model. Waits until the model is served."""
        while True:
            try:
                return await self._ask(kind, name)
            except grpc.aio.AioRpcError as error:
                if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.NOT_FOUND):
                    raise
                await asyncio.sleep(0.02)

    async def _ask(self, kind: str, name: str) -> Any:
        match kind:
            case "dense" | "tokens" | "sparse":
                request = embedding_pb2.EmbedRequest(model=name, texts=TEXTS, return_token_ids=kind == "tokens")
                request.outputs.append(OUTPUTS[kind])
                return await self.calls.embedding.Embed(request)
            case "explained":
                request = ranking_pb2.RerankRequest(model=name, query=TEXTS[0], documents=TEXTS[1:], explain=True)
                request.method = v.SCORING_METHOD_LATE_INTERACTION
                return await self.calls.ranking.Rerank(request)
            case "classify":
                request = classification_pb2.ClassifyRequest(model=name, texts=TEXTS)
                return await self.calls.classification.Classify(request)
        raise AssertionError(kind)


@pytest.fixture(scope="module")
async def deceived(nursery: object) -> AsyncIterator[Deceived]:
    """A frontend with a worker for each lie, and an honest one."""
    workers = [LyingWorker(name, lie) for name, lie in {**LIES, **ENDING_LIES, **HARMLESS}.items()]
    workers += [LyingWorker("honest"), *(worker for worker, _ in NEVER)]
    for worker in workers:
        await worker.start()
    honest = ServiceProcess("frontend_service", [], {"worker": "127.0.0.1:1"})
    await honest.start()
    idle = memory(honest, "VmRSS")
    await honest.stop()
    frontend = ServiceProcess("frontend_service", [], {"worker": [worker.address for worker in workers]})
    await frontend.start()
    async with grpc.aio.insecure_channel(frontend.address, options=channel_options()) as channel:
        yield Deceived(frontend, {worker.name: worker for worker in workers}, Calls(channel), idle)
    await frontend.stop()
    for worker in workers:
        await worker.stop()


NEVER = never_serving()
BROKEN = {
    "NaN": LIES["NaN in a vector"],
    "overloaded": Lie(result=lambda *_: Overloaded("the queue is full", retry_after=1.0)),
    "unavailable": Lie(result=lambda *_: WorkerUnavailable("no such model", retry_after=1.0)),
    "invalid input": Lie(result=lambda *_: InvalidInput("a text makes no sense", field="texts[0]")),
}


@pytest.mark.parametrize("kind", [*OUTPUTS, "explained", "classify"])
async def test_an_honest_worker_is_believed(deceived: Deceived, kind: str) -> None:
    """Whatever it is asked, so that the tests below refuse for the lie alone."""
    assert await deceived.ask(kind, "honest")
    lines = deceived.lines(deceived.workers["honest"])
    assert not any("does not fit" in line["event"] + line.get("why", "") for line in lines)


@pytest.mark.parametrize("name", LIES)
async def test_a_wrong_reply_is_refused_and_logged_once(deceived: Deceived, name: str) -> None:
    """By the worker's address and what did not fit, however often it comes; the link goes on."""
    lie, worker = LIES[name], deceived.workers[name]
    for _ in range(3):
        await refused(deceived, lie, name)
    lines = deceived.lines(worker)
    failed = "an error" in name  # the worker's own error is no lie, only too long
    told = [line["event"] for line in lines if not line["event"].startswith("worker ")]
    assert told == ["a worker's reply does not fit"] * (not failed)
    lost = [line["why"] for line in lines if line["event"] == "worker not ready"]  # where a machine stands still
    assert not any("does not fit" in why for why in lost)
    assert worker.attached == 1 + len(lost)


@pytest.mark.parametrize("name", ENDING_LIES)
async def test_a_wrong_message_ends_the_link_and_is_logged_once(deceived: Deceived, name: str) -> None:
    """Whoever waits for a job is told; the link is made again, and ends again, without another line."""
    lie, worker = ENDING_LIES[name], deceived.workers[name]
    for _ in range(3):
        await refused(deceived, lie, name)
    assert worker.attached == 3
    lines = deceived.lines(worker, "worker ready", "worker not ready", "a worker's reply does not fit")
    assert sorted(line["event"] for line in lines) == [
        "a worker's reply does not fit",
        "worker not ready",
        "worker ready",
    ]
    assert worker.address in lines[-1]["why"] or worker.address in lines[-2]["why"]


async def refused(deceived: Deceived, lie: Lie, name: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await deceived.ask(lie.asked, name)
    details = raised.value.details() or ""
    assert raised.value.code() is grpc.StatusCode.INTERNAL, details
    assert deceived.workers[name].address in details
    assert re.search(lie.told, details), details
    assert len(details) < 1100
    assert refusal(raised.value)[1] in ("INTERNAL", "")


async def test_a_workers_words_control_no_terminal(deceived: Deceived) -> None:
    """Nor do those of EmbedStream, or any line of the log."""
    name = "an error that controls terminals"
    await refused(deceived, LIES[name], name)
    request = embedding_pb2.EmbedStreamRequest(id=1, request=embedding_pb2.EmbedRequest(model=name, texts=TEXTS))
    [told] = [reply.error.message async for reply in deceived.calls.embedding.EmbedStream(iter([request]))]
    assert re.search(TAMED, told)
    assert told.isprintable()
    assert all(line.isprintable() for line in deceived.frontend.log)


@pytest.mark.parametrize("name", HARMLESS)
async def test_what_is_sent_beside_right_answers_spoils_none(deceived: Deceived, name: str) -> None:
    for _ in range(3):
        reply = await deceived.ask("dense", name)
        assert np.frombuffer(reply.dense.data, "<f4").tolist() == [0.5] * WIDTH * len(TEXTS)


@pytest.mark.parametrize(("worker", "told"), NEVER, ids=[worker.name[:30] for worker, _ in NEVER])
async def test_a_worker_that_lies_of_itself_serves_nothing(deceived: Deceived, worker: LyingWorker, told: str) -> None:
    """The log says why, with its address, once for all attempts to attach."""

    def reasons() -> list[str]:
        """Those that are the lie's: where a machine stands still, an attempt may end before it is seen."""
        return [line["why"] for line in deceived.lines(worker) if re.search(told, line["why"])]

    await eventually(lambda: bool(reasons()))
    assert {line["event"] for line in deceived.lines(worker)} == {"worker not ready"}
    (why,) = reasons()
    assert len(why) < 1200


async def test_all_lies_together_cost_little_memory_and_no_traceback(deceived: Deceived) -> None:
    """At their worst moment. Whatever was asked before, all that is endless has been sent at least twice."""
    for worker, _ in NEVER:
        await eventually(lambda worker=worker: bool(deceived.lines(worker)))
    assert memory(deceived.frontend, "VmHWM") - deceived.idle < GROWTH
    assert not any("Traceback" in line or '"exception"' in line for line in deceived.frontend.log)


async def test_a_broken_worker_beside_an_honest_one_fails_four_calls(nursery: object) -> None:
    """Though it answers at once and looks idle. The fifth that it fails in a row is asked of the honest one, and shows
    whose fault that is: from then on all are answered, also when the broken one's pause has ended."""
    await asyncio.gather(*map(fails_four_calls, BROKEN.values()))


async def fails_four_calls(lie: Lie) -> None:
    broken, honest = LyingWorker("m", lie), LyingWorker("m")
    honest.load = Load(tokens_per_second=1000.0)  # the broken one's time is unknown, so it would be chosen each time
    for worker in (broken, honest):
        await worker.start()
    frontend = ServiceProcess(
        "frontend_service", [], {"worker": [broken.address, honest.address], "metrics": "127.0.0.1:0"}
    )
    await frontend.start()
    async with grpc.aio.insecure_channel(frontend.address, options=channel_options()) as channel:
        calls = Calls(channel)

        async def both_serve() -> bool:
            return (await scrape(frontend))("selvage_workers_serving", model="m") == 2

        await eventually(both_serve)
        request = embedding_pb2.EmbedRequest(model="m", texts=TEXTS)

        async def failed(count: int = 1) -> int:
            replies = await asyncio.gather(
                *[calls.embedding.Embed(request) for _ in range(count)], return_exceptions=True
            )
            return sum(isinstance(reply, grpc.aio.AioRpcError) for reply in replies)

        async def one_failed() -> bool:  # perhaps not before the honest one has told its load
            return await failed() == 1

        await eventually(one_failed)
        assert await failed(100) == 3
        lines = [event for event in frontend.events if event["event"] == "worker set aside"]
        assert {line["target"] for line in lines} == {broken.address}

        async def set_aside_again() -> bool:
            await calls.embedding.Embed(request)
            return any(event["event"] == "worker set aside" and event["seconds"] > 1 for event in frontend.events)

        async def counted() -> bool:  # unless its pause has just ended; each is longer than the one before
            await calls.embedding.Embed(request)
            return (await scrape(frontend))("selvage_workers_set_aside", model="m") == 1

        await eventually(set_aside_again)
        await eventually(counted)
    await frontend.stop()
    for worker in (broken, honest):
        await worker.stop()

"""Two APIs of one frontend: gRPC, and one that is nothing but Python. What is policy is the same behind both."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import plain_api
import pytest
from fakes import FakeWorker, card
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from plain_api import Body, PlainApi
from structlog.testing import capture_logs

from frontend_service.api.selvage_v1.server import register
from frontend_service.application.frontend import Frontend
from frontend_service.domain.limits import Limits
from frontend_service.services.pipeline import Pipeline
from frontend_service.workers.interface import ServedModel
from selvage.v1 import embedding_pb2, ranking_pb2
from selvage.v1.embedding_pb2_grpc import EmbeddingServiceStub
from selvage.v1.ranking_pb2_grpc import RankingServiceStub
from shared.errors import Overloaded
from shared.jobs import Encode, Job, JobResult, Rows
from shared.server.calls import Calls
from shared.server.grpc_server import Server
from shared.server.interceptor import Interceptor
from shared.server.options import PUBLIC_SERVICES

DOCUMENTS = ["b", "c d", "e", "f"]
REQUESTS = {"Embed": embedding_pb2.EmbedRequest, "Rerank": ranking_pb2.RerankRequest}


class Worker(FakeWorker):
    """Its rows tell their tokens; it fails as it is told, and stops where `hold` is set."""

    def __init__(self) -> None:
        super().__init__(card())
        self.fails: Exception | None = None
        self.hold = False
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()
        self.ids: list[str] = []

    async def run(self, model: ServedModel, job: Job) -> JobResult:
        self.ids.append(job.request_id)
        self.reached.set()
        if self.hold:
            await self.go_on.wait()
        if self.fails is not None:
            raise self.fails
        if not isinstance(job.work, Encode):
            return await super().run(model, job)
        tokens, starts = np.frombuffer(job.tokens.ids, dtype="<i4"), list(job.tokens.offsets[:-1])
        rows = np.repeat(np.add.reduceat(tokens, starts), 8).astype("<f4")
        return JobResult(dense=Rows(dimensions=8, data=rows.tobytes()))


class House:
    """One frontend with both APIs."""

    def __init__(self, port: int, worker: Worker, calls: Calls, frontend: Frontend) -> None:
        self.worker = worker
        self.calls = calls
        self.plain = PlainApi(frontend)
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        self._stubs: dict[str, Any] = {
            "Embed": EmbeddingServiceStub(self.channel).Embed,
            "Rerank": RankingServiceStub(self.channel).Rerank,
        }

    async def by_grpc(self, method: str, body: Body, given_id: str = "") -> Any:
        """The message, or the error in the plain API's words."""
        metadata = [("x-request-id", given_id)] if given_id else None
        try:
            return await self._stubs[method](REQUESTS[method](**body), metadata=metadata)
        except grpc.aio.AioRpcError as error:
            return told(error)


def told(error: grpc.aio.AioRpcError) -> Body:
    """A status of gRPC as the plain API tells an error."""
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    assert status is not None
    info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    found = [detail for detail in status.details if detail.Unpack(info) or detail.Unpack(bad) or detail.Unpack(retry)]
    assert found
    seconds = retry.retry_delay.ToNanoseconds() / 1e9
    return {
        "status": error.code().name,
        "reason": info.reason,
        "field": bad.field_violations[0].field if bad.field_violations else "",
        "retry": seconds or None,
    }


async def opened(timeout: float) -> AsyncIterator[House]:
    calls, worker, threads = Calls(timeout=timeout), Worker(), ThreadPoolExecutor(2)
    frontend = Frontend(Pipeline(worker, Limits(), threads, threads), calls)
    server = Server(PUBLIC_SERVICES, calls, threads=threads, connection_age=False)
    register(frontend, server.grpc)
    port = server.grpc.add_insecure_port("127.0.0.1:0")
    await server.grpc.start()
    house = House(port, worker, calls, frontend)
    yield house
    await house.channel.close()
    await server.grpc.stop(0)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    """Calls without a deadline get a minute."""
    async for each in opened(60):
        yield each


@pytest.fixture
async def hasty_house() -> AsyncIterator[House]:
    """Calls without a deadline get next to no time."""
    async for each in opened(0.01):
        yield each


async def test_a_contract_of_any_name_is_held_to_the_rules() -> None:
    """A server that drains refuses its calls, although nothing but the registration names it."""
    calls = Calls(timeout=600)
    calls.refuse()
    server = grpc.aio.server(interceptors=[Interceptor(calls, ThreadPoolExecutor(1))])
    echo: Any = grpc.unary_unary_rpc_method_handler(lambda request, _: request)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("third.v1.Echo", {"Echo": echo}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await channel.unary_unary("/third.v1.Echo/Echo")(b"")
    await server.stop(0)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_both_apis_embed_alike(house: House) -> None:
    """The same bytes and the same counts, and times of the same kind."""
    body = {"texts": ["a b", "c", "a b"]}
    plain, message = await house.plain.call("Embed", body), await house.by_grpc("Embed", body)
    assert (plain["model"], plain["data"]) == (message.model, message.dense.data)
    assert plain["token_counts"] == list(message.usage.token_counts) == [4, 3, 4]
    assert list(plain["timing"]) == [field.name for field in message.timing.DESCRIPTOR.fields]


async def test_both_apis_rerank_alike(house: House) -> None:
    """The same order, scores and texts, cut to top_n."""
    body = {"query": "a", "documents": DOCUMENTS, "top_n": 3, "return_documents": True}
    plain, message = await house.plain.call("Rerank", body), await house.by_grpc("Rerank", body)
    assert [tuple(result.values()) for result in plain["results"]] == [
        (result.index, result.score, result.document) for result in message.results
    ]
    assert [result["document"] for result in plain["results"]] == ["c d", "e", "f"]


@pytest.mark.parametrize(
    ("method", "body", "reason", "field"),
    [
        ("Embed", {"texts": []}, "INVALID_INPUT", "texts"),
        ("Embed", {"texts": ["a"], "model": "other"}, "UNKNOWN_MODEL", "model"),
        ("Embed", {"texts": ["a", "b " * 20]}, "INPUT_TOO_LONG", "texts[1]"),
        ("Embed", {"texts": ["a"] * 5000}, "LIMIT_EXCEEDED", "texts"),
        ("Rerank", {"query": "a", "documents": []}, "INVALID_INPUT", "documents"),
        ("Rerank", {"query": "a", "documents": ["b"], "top_n": 0}, "INVALID_INPUT", "top_n"),
        ("Rerank", {"query": "a " * 20, "documents": ["b"]}, "INPUT_TOO_LONG", "query"),
    ],
)
async def test_both_apis_refuse_alike(house: House, method: str, body: Body, reason: str, field: str) -> None:
    """Reason, field and status."""
    plain = await house.plain.call(method, body)
    assert plain == await house.by_grpc(method, body)
    assert (plain["reason"], plain["field"]) == (reason, field)


@pytest.mark.parametrize(
    ("fails", "reason", "retry"),
    [(Overloaded("full", retry_after=1.5), "OVERLOADED", 1.5), (KeyError("secret"), "INTERNAL", None)],
)
async def test_what_fails_behind_them_is_told_alike(
    house: House, fails: Exception, reason: str, retry: float | None
) -> None:
    """An error of the worker as it is, a bug without what it says."""
    house.worker.fails = fails
    body = {"texts": ["a"]}
    plain = await house.plain.call("Embed", body)
    assert plain == await house.by_grpc("Embed", body)
    assert (plain["reason"], plain["retry"]) == (reason, retry)


async def test_calls_without_a_deadline_end_alike(hasty_house: House) -> None:
    """After the default time, by name."""
    hasty_house.worker.hold = True
    body = {"texts": ["a"]}
    plain = await hasty_house.plain.call("Embed", body)
    assert plain == await hasty_house.by_grpc("Embed", body)
    assert plain["reason"] == "DEADLINE_EXCEEDED"


async def test_both_apis_refuse_alike_while_draining(house: House) -> None:
    """What runs is answered, what comes is refused by name; then nothing runs any more."""
    house.worker.hold, body = True, {"texts": ["a"]}
    runs = asyncio.ensure_future(house.by_grpc("Embed", body))
    await house.worker.reached.wait()
    house.calls.refuse()
    plain = await house.plain.call("Embed", body)
    assert plain == await house.by_grpc("Embed", body)
    assert (plain["status"], plain["reason"]) == ("UNAVAILABLE", "WORKER_UNAVAILABLE")
    drained = asyncio.ensure_future(house.calls.idle())
    assert not (await asyncio.wait([drained], timeout=0))[0]
    house.worker.go_on.set()
    assert (await runs).dense.count == 1
    await drained


async def test_both_apis_carry_the_request_id_and_log_a_line_a_call(house: House) -> None:
    """The caller's id where it is a sensible one; the line tells what became of the call."""
    with capture_logs() as lines:
        for given in ("mine-7", "x" * 200):
            await house.plain.call("Embed", {"texts": ["a"]}, given)
            await house.by_grpc("Embed", {"texts": ["a"]}, given)
        await house.plain.call("Embed", {"texts": []})
        await house.by_grpc("Embed", {"texts": []})
    assert house.worker.ids[:2] == ["mine-7"] * 2
    assert all(len(each) == 32 for each in house.worker.ids[2:])
    told = [(line["method"].rpartition("/")[2], line["code"], line.get("reason")) for line in lines]
    assert told == [("Embed", "OK", None)] * 4 + [("Embed", "INVALID_ARGUMENT", "INVALID_INPUT")] * 2


def test_the_second_api_needs_no_grpc() -> None:
    """It runs where neither gRPC nor protobuf is installed: what is behind an API needs neither."""
    absent = ["grpc", "grpc_health", "grpc_status", "google", "selvage", "tei"]
    program = f"import sys\nsys.modules.update(dict.fromkeys({absent}))\nimport plain_api\n"
    folder = Path(plain_api.__file__).parent
    root = folder.parents[2]
    subprocess.run([sys.executable, "-c", program], check=True, cwd=root, env={"PYTHONPATH": f"{root}:{folder}"})

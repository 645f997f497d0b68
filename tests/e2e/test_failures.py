"""Members that die, come back, or are told to stop."""

import asyncio
from collections import Counter

import grpc
import pytest

from harness.member import MemberFailed, ServiceProcess
from harness.stack import stack
from selvage.v1 import embedding_pb2, model_pb2
from shared.jobs import Encode, Job, RaggedTokens
from shared.server.options import PUBLIC_SERVICES, WORKER_SERVICES
from shared.vectors import OutputKind
from support.forked import ENDS_AS_PYTHON
from support.random_models import random_model
from support.references import Calls, attached, dense, eventually, refusal, until_queued

TINY = "tiny-bert"
TEXTS = 60
"""Whose token rows, 7 MiB, are far more than what a connection holds."""
REQUEST = embedding_pb2.EmbedRequest(texts=["w1 w2 w3", "w4"])


class Load:
    """Clients that call without pause until told to stop, and what became of each call."""

    def __init__(self, calls: Calls, clients: int = 4) -> None:
        self.outcomes: Counter[str] = Counter()
        self.answered = asyncio.Event()
        self._stop = False
        self._tasks = [asyncio.create_task(self._client(calls)) for _ in range(clients)]

    async def _client(self, calls: Calls) -> None:
        while not self._stop:
            try:
                await calls.embedding.Embed(REQUEST, timeout=240)
                self.outcomes["OK"] += 1
                self.answered.set()
            except grpc.aio.AioRpcError as error:
                self.outcomes[error.code().name] += 1
                await asyncio.sleep(0.005)

    async def more_answers(self, count: int) -> None:
        target = self.outcomes["OK"] + count
        while self.outcomes["OK"] < target:
            self.answered.clear()
            await self.answered.wait()

    async def end(self) -> Counter[str]:
        self._stop = True
        await asyncio.gather(*self._tasks)
        return self.outcomes


async def test_a_killed_worker_comes_back() -> None:
    """In between every call gets UNAVAILABLE at once, though it would wait a minute; service resumes by itself."""
    async with stack(random_model(TINY)) as pair:
        load = Load(Calls(pair.channel))
        await load.more_answers(20)
        await pair.worker.kill()
        await eventually(lambda: load.outcomes["UNAVAILABLE"] >= 20)
        await pair.worker.restart()
        await load.more_answers(20)
        outcomes = await load.end()
    assert set(outcomes) == {"OK", "UNAVAILABLE"}


async def test_a_worker_that_comes_back_with_another_model_is_served() -> None:
    """Under its own name; the first one's is unknown from then on."""
    async with stack(random_model(TINY)) as pair:
        calls = Calls(pair.channel)
        await pair.worker.kill()
        pair.worker.arguments["model"] = random_model("tiny-roberta")
        await pair.worker.restart()
        await pair.worker.wait_ready()
        await pair.frontends[0].wait_ready()
        assert (await calls.embedding.Embed(REQUEST)).model == "tiny-roberta"
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await calls.embedding.Embed(embedding_pb2.EmbedRequest(texts=["w1"], model="tiny-bert"))
    assert refusal(raised.value)[:2] == ("NOT_FOUND", "UNKNOWN_MODEL")


async def test_stopping_one_of_two_frontends_loses_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that balances over both sees no failed call; the process ends as every Python does."""
    monkeypatch.setenv(ENDS_AS_PYTHON, "1")
    async with stack(random_model(TINY), frontends=2) as pair, pair.balanced_channel() as channel:
        load = Load(Calls(channel))
        await load.more_answers(50)
        assert await pair.frontends[0].stop() == 0
        await load.more_answers(50)
        outcomes = await load.end()
    assert set(outcomes) == {"OK"}


async def test_a_draining_worker_answers_what_it_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM in the middle of a long request: it is answered in full, and the process ends with 0, by Python's own
    end as well."""
    monkeypatch.setenv(ENDS_AS_PYTHON, "1")
    async with stack(random_model(TINY)) as pair:
        calls = Calls(pair.channel)
        texts = [" ".join(f"w{(index + each) % 800}" for each in range(300)) for index in range(150)]
        expected = dense(await calls.embedding.Embed(embedding_pb2.EmbedRequest(texts=texts[-1:])))
        long = asyncio.ensure_future(calls.embedding.Embed(embedding_pb2.EmbedRequest(texts=texts), timeout=240))
        await until_queued(pair)
        assert await pair.worker.stop() == 0
        assert abs(dense(await long)[-1] - expected[0]).max() < 1e-6
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await calls.embedding.Embed(REQUEST)
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_draining_worker_waits_for_slow_readers() -> None:
    """A large result that its frontend takes slowly is delivered whole, however long ago it was computed."""
    async with stack(random_model("tiny-bert")) as pair, attached(pair.worker.address) as link:
        tokens = RaggedTokens.of([[5] * 500] * TEXTS)
        work = Encode(outputs=frozenset({OutputKind.MULTI_VECTOR}), normalize=True, normalize_tokens=True)
        await link.ask(Job(id=1, work=work, tokens=tokens))
        while not link.parts:
            await link.read()
        stopping = asyncio.create_task(pair.worker.stop())
        await eventually(lambda: any("draining" in line for line in pair.worker.log))
        await asyncio.wait([stopping], timeout=0.5)
        rows = (await link.answers(1))[1].tokens
        assert rows is not None
        assert len(rows.data) == TEXTS * 500 * 64 * 4
        assert await stopping == 0


async def test_a_full_worker_says_when_to_try_again() -> None:
    """OVERLOADED with RetryInfo and the pushback trailer, while the first job goes on."""
    async with stack(random_model(TINY), worker={"queue-seconds": 0.01}) as pair:
        calls = Calls(pair.channel)
        big = embedding_pb2.EmbedRequest(texts=[f"w{number} " + "w1 " * 499 for number in range(60)])
        first = asyncio.ensure_future(calls.embedding.Embed(big, timeout=240))
        await until_queued(pair)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await calls.embedding.Embed(big)
        assert refusal(raised.value)[:2] == ("RESOURCE_EXHAUSTED", "OVERLOADED")
        assert int(dict(raised.value.trailing_metadata())["grpc-retry-pushback-ms"]) >= 100
        assert (await first).dense.count == 60


async def test_a_frontend_waits_for_its_worker() -> None:
    """Started first, it is NOT_SERVING and answers WORKER_UNAVAILABLE; then it serves without being told."""
    worker = ServiceProcess("gpu_worker", WORKER_SERVICES, {"model": random_model(TINY)})
    await worker.start()
    address = worker.address
    await worker.kill()
    frontend = ServiceProcess("frontend_service", PUBLIC_SERVICES, {"worker": address, "drain-delay": 0})
    await frontend.start()
    try:
        async with grpc.aio.insecure_channel(frontend.address) as channel:
            calls = Calls(channel)
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await calls.model.GetModel(model_pb2.GetModelRequest())
            assert refusal(raised.value)[:2] == ("UNAVAILABLE", "WORKER_UNAVAILABLE")
            await worker.restart()
            await frontend.wait_ready()
            assert (await calls.model.GetModel(model_pb2.GetModelRequest())).card.id == "tiny-bert"
    finally:
        await frontend.stop()
        await worker.stop()


async def started(member: ServiceProcess) -> None:
    try:
        await member.start()
        await member.wait_ready()
    finally:
        await member.stop()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"model": "/nowhere"}, "there is no such directory"),
        ({"max-tokens": 641}, "the model has 640 positions"),
        ({"dtype": "float8"}, "--dtype"),
        ({"device": "cuda:99"}, "device 'cuda:99' cannot be used"),
    ],
)
async def test_a_worker_that_cannot_start_says_why_and_ends(arguments: dict[str, object], said: str) -> None:
    """One line that names the setting, and status 2."""
    member = ServiceProcess("gpu_worker", WORKER_SERVICES, {"model": random_model(TINY), **arguments})
    with pytest.raises(MemberFailed, match="ended with status 2"):
        await started(member)
    assert said in member.log[-1]

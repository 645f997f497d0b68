"""TLS, API keys and the link's secret, with real processes: who is let in, who is not, and what changes meanwhile."""

import asyncio
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from multidict import CIMultiDict

from frontend_service.access.api_keys import hashed
from harness.environment import ROOT, python_path
from harness.member import ServiceProcess
from harness.stack import Stack, stack
from selvage import TLS, AsyncClient, errors
from selvage.v1.embedding_pb2 import EmbedRequest, EmbedStreamRequest
from shared.server.options import channel_options
from support.certificates import Authority, Files
from support.forked import Nursery
from support.random_models import random_model
from support.references import eventually
from tei.v1 import tei_pb2

NAME = "selvage.test"
KEY, OTHER_KEY, SECRET, NEW_SECRET = (
    "sv-the-key-of-search",
    "sv-another",
    "the secret of the link",
    "another such secret",
)


@dataclass(frozen=True, slots=True)
class Guarded:
    """A pair that lets in whom it knows, and the files by which it does."""

    stack: Stack
    authority: Authority
    server: Files
    keys: Path
    secret: Path

    def client(self, key: str = KEY, **changed: Any) -> AsyncClient:
        tls = {"ca": self.authority.file.read_bytes(), "name": NAME, **changed}
        return AsyncClient(self.stack.frontends[0].address, key=key, tls=TLS(**tls), retries=0, timeout=240)

    def channel(self, address: str) -> grpc.aio.Channel:
        """Over TLS."""
        return open_channel(self.authority)(address)

    def logs(self) -> str:
        return "\n".join(line for member in self.stack.members for line in member.log)


def open_channel(authority: Authority) -> Any:
    def opened(address: str) -> grpc.aio.Channel:
        credentials = grpc.ssl_channel_credentials(authority.file.read_bytes())
        options = [*channel_options(), ("grpc.ssl_target_name_override", NAME)]
        return grpc.aio.secure_channel(address, credentials, options=options)

    return opened


def entry(key: str, name: str, more: str = "") -> str:
    return f'[[keys]]\nname = "{name}"\nsha256 = "{hashed(key)}"\n{more}\n'


@pytest.fixture(scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory, nursery: object) -> AsyncIterator[Guarded]:
    """The frontend asks for a key, the worker for the secret."""
    folder = tmp_path_factory.mktemp("guarded")
    authority = Authority(folder)
    server = authority.files("server", NAME, "127.0.0.1")
    keys, secret = folder / "keys.toml", folder / "secret"
    keys.write_text(entry(KEY, "search"))
    secret.write_text(f"{SECRET}\n")
    tls = {"tls-certificate": server.certificate, "tls-key": server.key}
    worker = {**tls, "link-secret-file": secret}
    frontend = {
        **tls,
        "api-keys": keys,
        "link-secret-file": secret,
        "worker-ca": authority.file,
        "log-level": "debug",
        "http-listen": "127.0.0.1:0",
    }
    async with stack(
        random_model("tiny-bert"), worker=worker, frontend=frontend, channel=open_channel(authority)
    ) as running:
        yield Guarded(running, authority, server, keys, secret)


async def test_who_has_a_key_is_answered(guarded: Guarded) -> None:
    async with guarded.client() as client:
        assert (await client.embed(["a", "b"])).shape == (2, 64)
        assert len([row async for row in client.embed_stream(["a", "b", "c"])]) == 3


@pytest.mark.parametrize("key", ["", "sv-wrong", hashed(KEY)], ids=["none", "wrong", "the hash"])
async def test_without_a_known_key_nothing_is_answered(guarded: Guarded, key: str) -> None:
    """Every rpc but health is refused, and no log holds what was shown."""
    async with guarded.client(key) as client:
        with pytest.raises(errors.Denied, match="API key"):
            await client.embed("a")
        with pytest.raises(errors.Denied):
            await anext(aiter(client.embed_stream(["a"])))
        with pytest.raises(errors.Denied):
            await client.model()
    async with guarded.channel(guarded.stack.frontends[0].address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(service="selvage.v1.EmbeddingService"))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    assert KEY not in guarded.logs()
    assert "sv-wrong" not in guarded.logs()
    assert SECRET not in guarded.logs()


async def asked(guarded: Guarded, key: str = KEY, **changed: Any) -> tuple[int, dict[str, Any]]:
    """Status and body of POST /v1/embeddings over HTTPS."""
    context = ssl.create_default_context(cafile=str(changed.get("ca", guarded.authority.file)))
    url = guarded.stack.frontends[0].http_url.replace("http:", "https:") + "/v1/embeddings"
    headers = {"authorization": f"Bearer {key}"} if key else {}
    connector = aiohttp.TCPConnector(ssl=context)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(url, json={"input": "a"}, headers=headers, server_hostname=changed.get("name", NAME)) as reply,
    ):
        return reply.status, await reply.json()


async def test_the_same_over_http(guarded: Guarded) -> None:
    """With a key; without one, with a wrong one, for another name, and in plain text."""
    assert (await asked(guarded))[0] == 200
    for key in ("", "sv-wrong"):
        status, told = await asked(guarded, key)
        assert (status, told["error"]["code"]) == (401, "invalid_api_key")
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await asked(guarded, name="another.test")
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            await session.get(guarded.stack.frontends[0].http_url + "/health")
    assert "sv-wrong" not in guarded.logs()


async def test_a_plain_client_gets_nowhere(guarded: Guarded) -> None:
    for member in guarded.stack.members:
        async with grpc.aio.insecure_channel(member.address, options=channel_options()) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await health.Check(health_pb2.HealthCheckRequest(), timeout=240)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    probe = [*(sys.executable, "-m", "shared.server.probe"), guarded.stack.worker.address, "--name", NAME]
    for flags, status in (([], 1), (["--ca", str(guarded.authority.file)], 0)):
        command = [*probe, "--timeout", "240", *flags]
        answer = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, check=False)
        assert answer.returncode == status, answer.stdout.decode() + answer.stderr.decode()


async def test_the_worker_takes_whoever_has_the_secret(guarded: Guarded) -> None:
    async with guarded.channel(guarded.stack.worker.address) as channel:
        describe = channel.unary_unary("/selvage.worker.v1.WorkerService/Describe")
        for shown in ("", "wrong"):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await describe(b"", timeout=240, metadata=[("authorization", f"Bearer {shown}")])
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert await describe(b"", timeout=240, metadata=[("authorization", f"Bearer {SECRET}")])


@pytest.mark.parametrize("others", [["wrong"], [""], [SECRET, KEY]], ids=["one wrong", "one empty", "two right"])
async def test_of_several_authorizations_none_counts(guarded: Guarded, others: list[str]) -> None:
    """At the frontend and at the worker, in any order, in the words in which HTTP refuses them; health too."""
    calls = [
        (guarded.stack.frontends[0], "/selvage.v1.ModelService/ListModels", KEY),
        (guarded.stack.frontends[0], "/selvage.v1.EmbeddingService/EmbedStream", KEY),
        (guarded.stack.worker, "/selvage.worker.v1.WorkerService/Describe", SECRET),
        (guarded.stack.worker, "/selvage.worker.v1.WorkerService/Attach", SECRET),
        (guarded.stack.worker, "/grpc.health.v1.Health/Check", SECRET),
    ]
    for member, method, secret in calls:
        async with guarded.channel(member.address) as channel:
            for shown in ([secret, *others], [*others, secret]):
                metadata = [("authorization", f"Bearer {each}") for each in shown]
                call = channel.stream_stream(method)(timeout=240, metadata=metadata)
                assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
                assert await call.details() == f"authorization comes {len(shown)} times, it may come once"
    url = guarded.stack.frontends[0].http_url.replace("http:", "https:") + "/v1/models"
    context = ssl.create_default_context(cafile=str(guarded.authority.file))
    headers = CIMultiDict([("authorization", f"Bearer {KEY}")] * 2)
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, headers=headers, ssl=context, server_hostname=NAME) as reply,
    ):
        assert reply.status == 400
        assert "authorization comes 2 times, it may come once" in await reply.text()


async def test_new_files_are_taken_without_a_lost_call(guarded: Guarded) -> None:
    """Certificate, keys and secret change while calls run; each is in force a second or so later. A key that is taken
    out of the file ends its streams of both APIs, though they wait for their caller; those of other keys go on."""
    answered = 0
    ended = asyncio.Event()

    async def calls() -> None:
        nonlocal answered
        while not ended.is_set():
            async with guarded.client() as client:  # a new connection each
                await client.embed("a")
                answered += 1

    running = asyncio.create_task(calls())
    try:
        guarded.server.write(guarded.authority.issue(NAME, "127.0.0.1", "new.test"))
        guarded.keys.write_text(entry(KEY, "search") + entry(OTHER_KEY, "other"))
        guarded.secret.write_text(f"{NEW_SECRET}\n{SECRET}\n")
        await eventually(lambda: is_answered(guarded, OTHER_KEY, name="new.test"))
        assert (await asked(guarded, OTHER_KEY, name="new.test"))[0] == 200
        await a_key_is_taken_out(guarded)
        assert not await is_answered(guarded, OTHER_KEY)
        before = answered
        await eventually(lambda: answered >= before + 3)
    finally:
        ended.set()
        await running


async def a_key_is_taken_out(guarded: Guarded) -> None:
    own = EmbedStreamRequest(id=1, request=EmbedRequest(texts=["a"]))
    methods = {"selvage.v1.EmbeddingService": own, "tei.v1.Embed": tei_pb2.EmbedRequest(inputs="a")}
    async with guarded.channel(guarded.stack.frontends[0].address) as channel:
        streams = [
            (key, message.SerializeToString(), channel.stream_stream(f"/{service}/EmbedStream"))
            for key in (KEY, OTHER_KEY)
            for service, message in methods.items()
        ]
        calls = [(key, raw, method(metadata=(("authorization", f"Bearer {key}"),))) for key, raw, method in streams]
        for _, raw, call in calls:
            await call.write(raw)
            assert await call.read()
        guarded.keys.write_text(entry(KEY, "search"))
        for key, raw, call in calls:
            if key == OTHER_KEY:
                assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
                assert "no longer known" in (await call.details())
            else:
                await call.write(raw)
                assert await call.read()


async def is_answered(guarded: Guarded, key: str, **changed: Any) -> bool:
    try:
        async with guarded.client(key, **changed) as client:
            await client.embed("a")
    except (errors.Denied, errors.Unavailable):
        return False
    return True


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--tls-certificate", "/none"], "--tls-certificate needs --tls-key"),
        (["--api-keys", "/none"], "--api-keys = '/none': [Errno 2]"),
        (["--link-secret-file", "/dev/null"], "--link-secret-file = '/dev/null': a secret must be"),
        (["--tls-ca", "/none"], "--tls-ca needs --tls-certificate"),
    ],
)
async def test_a_wrong_file_is_told_at_the_start(nursery: Nursery, flags: list[str], told: str) -> None:
    process = await nursery.start(
        *(sys.executable, "-m", "frontend_service", "--listen", "127.0.0.1:0", *flags),
        cwd=ROOT,
        env={"PYTHONPATH": python_path()},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()
    assert process.returncode == 2
    assert told in errors.decode()
    assert "Traceback" not in errors.decode()


async def test_an_open_address_is_told(guarded: Guarded) -> None:
    """In the log, with what is missing; a guarded one on loopback is not."""
    assert not any("other machines" in line for line in guarded.stack.frontends[0].log)
    member = ServiceProcess("frontend_service", [], {"listen": "0.0.0.0:0", "worker": guarded.stack.worker.address})
    await member.start()
    await member.stop()
    warned = [event for event in member.events if event["event"] == "other machines reach this address"]
    assert [each["without"] for each in warned] == [["--tls-certificate", "--api-keys or --tls-ca"]]

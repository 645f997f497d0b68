"""How calls of both clients end before they are done: cancelled, closed, given up."""

import asyncio
import gc
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from selvage import AsyncClient, Client, errors
from selvage.background import LoopThread, Session
from shared import errors as served
from support.fake_frontend import KINDS, FakeFrontend, connected, texts
from support.references import eventually

MANY = texts(1300)


def all_of_them(_: Any) -> bool:
    return True


async def test_cancelling_a_task_ends_its_calls(fake: FakeFrontend) -> None:
    """The frontend hears of it."""
    fake.holds = all_of_them
    async with AsyncClient(fake.address) as client:
        asking = asyncio.ensure_future(client.embed(MANY))
        await eventually(lambda: fake.at_once == 3)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await eventually(lambda: fake.cancelled == 3)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_error_of_one_part_ends_the_others(fake: FakeFrontend, kind: str) -> None:
    """They are not waited for."""
    fake.holds = all_of_them
    fake.refusals.append(served.Internal("a bug"))
    async with connected(kind, fake.address, in_flight=2) as client:
        with pytest.raises(errors.Internal):
            await client.embed(MANY)
        assert len(fake.asked) <= 3
        await eventually(lambda: fake.cancelled == len(fake.asked) - 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("entries", [MANY, ["a"]], ids=["many requests", "one request"])
async def test_closing_ends_calls_that_are_under_way(fake: FakeFrontend, kind: str, entries: list[str]) -> None:
    """With an error that says so: nobody cancelled the task. The frontend hears of it, and later calls are told too."""
    fake.holds = all_of_them
    async with connected(kind, fake.address) as client:
        embed = client.client.embed
        asking = asyncio.ensure_future(embed(entries) if kind == "AsyncClient" else asyncio.to_thread(embed, entries))
        await eventually(lambda: fake.at_once > 0)
        await client.close()
        with pytest.raises(errors.Cancelled, match="the client was closed"):
            await asking
        await eventually(lambda: fake.cancelled == len(fake.asked))
        for method in (client.embed, client.stream):
            with pytest.raises(errors.Cancelled, match="the client was closed"):
                await method(["a"])


@pytest.mark.parametrize("entries", [MANY, ["a"]], ids=["many requests", "one request"])
async def test_a_timeout_around_a_call_is_no_closed_client(fake: FakeFrontend, entries: list[str]) -> None:
    """Though both cancel what is under way."""
    fake.holds = all_of_them
    async with AsyncClient(fake.address) as client:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.embed(entries), 0.2)
        fake.holds = lambda _: False
        assert (await client.embed("a")).shape == (3,)


def test_another_event_loop_is_refused(fake: FakeFrontend) -> None:
    """By each method, and in words: a second `asyncio.run` would otherwise fail within gRPC."""
    client = AsyncClient(fake.address)

    async def ask() -> None:
        await client.embed("a")

    async def stream() -> None:
        _ = [row async for row in client.embed_stream(["a"])]

    asyncio.run(ask())
    for method in (ask, stream):
        with pytest.raises(RuntimeError, match="the client belongs to the event loop of its first call"):
            asyncio.run(method())


async def test_closing_while_a_part_waits_to_be_sent_again(fake: FakeFrontend) -> None:
    """The call ends with it, not when its wait is over; other clients go on."""
    fake.refuse = lambda request: served.Overloaded("full", retry_after=600) if "a" in request.texts else None
    with Client(fake.address) as other:
        client = Client(fake.address, timeout=math.inf)
        waiting = asyncio.ensure_future(asyncio.to_thread(client.embed, "a"))
        await eventually(lambda: len(fake.asked) == 1)
        client.close()
        with pytest.raises(errors.Cancelled, match="the client was closed"):
            await waiting
        assert (await asyncio.to_thread(other.embed, "b")).shape == (3,)


@pytest.mark.parametrize(("method", "requests"), [("embed", 3), ("embed_stream", 21)])
def test_ctrl_c_ends_a_blocking_call(fake: FakeFrontend, method: str, requests: int) -> None:
    """The frontend hears of it, and the client goes on."""
    fake.holds = all_of_them
    with Client(fake.address) as client:

        def interrupt() -> None:
            while fake.at_once < requests:  # the caller waits for the first reply then
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)

        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            list(getattr(client, method)(MANY))
        interrupting.join()
        while fake.at_once:
            time.sleep(0.001)
        assert fake.cancelled == requests
        fake.holds = lambda _: False
        assert client.embed("a").shape == (3,)


ENDING = """
import itertools, sys, threading
from selvage import Client

client = Client(sys.argv[1])
stream = client.embed_stream(str(number) for number in itertools.count())
next(stream)
waiting = threading.Thread(target=client.embed, args=["held"], daemon=True)
waiting.start()
"""
FORKING = """
import os, sys, threading
from selvage import Client, background

early, late = Client(sys.argv[1]), Client(sys.argv[1])
if os.fork() == 0:
    print(early.embed("a").shape, flush=True)
    os._exit(0)
os.wait()
late.embed("a")
held, forked = threading.Event(), threading.Event()


def hold():
    with background._thread.lock:
        held.set()
        forked.wait()


threading.Thread(target=hold).start()
held.wait()
if os.fork() == 0:
    for client in (late, Client(sys.argv[1])):
        try:
            client.embed("a")
        except RuntimeError as error:
            print(error, flush=True)
        client.close()
    os._exit(0)
os.wait()
forked.set()
print(late.embed("a").shape)
"""


async def output_of(program: str, target: str) -> str:
    """What a program prints, which ends with status 0."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, target),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={"PYTHONPATH": str(Path(__file__).parents[3] / "client")},
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()


async def test_an_interpreter_ends_with_calls_under_way(fake: FakeFrontend) -> None:
    """Nobody has closed the client, nor read the stream to its end."""
    fake.refuse = lambda request: served.Overloaded("full", retry_after=600) if "held" in request.texts else None
    assert await output_of(ENDING, fake.address) == ""


async def test_a_fork_after_the_first_call_is_told(fake: FakeFrontend) -> None:
    """Its calls would wait for ever, also for a lock that another thread held. One before the first call is no fork."""
    assert (await output_of(FORKING, fake.address)).splitlines() == [
        "(3,)",
        "a client does not survive a fork: make one in each process",
        "a client had made calls before this process was forked: fork earlier, or spawn processes",
        "(3,)",
    ]


def test_a_thread_that_could_not_start_is_started_by_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    loop_thread = LoopThread()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_start)
        with pytest.raises(RuntimeError, match="start new thread"):
            loop_thread.started()
    assert asyncio.run_coroutine_threadsafe(asyncio.sleep(0, "ran"), loop_thread.started()).result(10) == "ran"
    loop_thread.end()


def test_empty_wakes_of_grpc_are_not_logged(fake: FakeFrontend, caplog: pytest.LogCaptureFixture) -> None:
    """A loop's other errors are."""
    with Client(fake.address) as client:
        client.embed("a")
    for callback in ("PollerCompletionQueue._handle_events", "another"):
        error = BlockingIOError(11, "Resource temporarily unavailable")
        logging.getLogger("asyncio").error("Exception in callback %s()", callback, exc_info=error)
    assert [record.getMessage() for record in caplog.records] == ["Exception in callback another()"]


def test_a_client_that_is_forgotten_ends_its_calls(fake: FakeFrontend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropped without `close`. All clients share one thread, which stays."""
    ended, stop = [], Session.stop
    monkeypatch.setattr(Session, "stop", lambda session: ended.append(stop(session)))
    for _ in range(2):
        Client(fake.address).embed("a")
        gc.collect()
    for end in ended:
        assert end is not None
        end.result()
    assert len(ended) == 2
    assert [thread.name for thread in threading.enumerate()].count("selvage") == 1


def test_the_texts_of_a_blocking_stream_are_read_by_its_caller(fake: FakeFrontend) -> None:
    """A text that is slow to come holds up nobody else, and other calls go on while it is read."""
    with Client(fake.address) as client:

        def source() -> Iterator[str]:
            for number in range(3):
                assert threading.current_thread() is threading.main_thread()
                client.embed(f"in between {number}")
                yield f"text {number}"

        assert len(list(client.embed_stream(source(), batch_size=1))) == 3


async def test_threads_share_a_client(fake: FakeFrontend) -> None:
    """Each gets its own answers."""
    fake.seconds = 0.01
    with Client(fake.address) as client:
        answers = await asyncio.gather(*(asyncio.to_thread(client.tokenize, MANY[start::8]) for start in range(8)))
    assert [["".join(text.tokens) for text in answer] for answer in answers] == [MANY[start::8] for start in range(8)]

"""How an engine ends, and what its callers are told then: nobody waits for ever, and nothing of it stays."""

import asyncio
import gc
import itertools
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from embedded import pair
from embedded.channel import local_channel
from gpu_worker.schedule.driver import DeviceLost, Driver
from gpu_worker.schedule.scheduler import Scheduler
from harness.environment import python_path
from selvage import Engine, errors
from selvage.calls.rpcs import RPCS
from selvage.v1.embedding_pb2 import EmbedRequest, EmbedStreamRequest
from support.random_models import random_model

pytestmark = pytest.mark.usefixtures("logs_as_they_were")
TEXTS = [f"w{number % 90} " * (1 + number % 9) for number in range(100)]


def test_closing_ends_what_is_under_way() -> None:
    """From another thread; every later call is told, and nothing of it stays."""
    before = threading.active_count()
    engine = Engine(random_model("tiny-bert"))
    ended: list[Exception] = []

    def ask() -> None:
        try:
            engine.embed(["w1 " * 400] * 20_000, truncate=True)
        except Exception as error:
            ended.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    while not engine._channel._pair.calls.admission.requests:
        time.sleep(0.001)
    engine.close()
    asking.join()
    engine.close()
    assert isinstance(ended[0], errors.Cancelled)
    for method in (lambda: engine.embed("w1"), lambda: next(iter(engine.embed_stream(["w1"])))):
        with pytest.raises(errors.Cancelled):
            method()
    assert threading.active_count() <= before


def test_closing_ends_a_stream() -> None:
    """Whoever reads it is told, however far it is."""
    for wait in (0, 1, 50):
        with Engine(random_model("tiny-bert")) as engine:
            reading = engine.embed_stream(f"w{number % 90}" for number in itertools.count())
            for _ in range(wait):
                next(reading)
            engine.close()
            with pytest.raises(errors.Cancelled):
                for _ in reading:
                    pass


def test_a_lost_device_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """To what is held, and to each later call at once: nobody waits for ever."""
    runs, lost = Driver.run, asyncio.Event()

    async def run(self: Driver) -> None:
        running = asyncio.create_task(runs(self))
        await lost.wait()
        running.cancel()
        raise DeviceLost("a small step failed")

    monkeypatch.setattr(Driver, "run", run)
    with Engine(random_model("tiny-bert"), timeout=240) as engine, ThreadPoolExecutor(1) as threads:
        held = threads.submit(engine.embed, [f"w{number} " * 400 for number in range(5000)], truncate=True)
        pair = engine._channel._pair
        while not pair.calls.admission.requests:
            time.sleep(0.001)
        pair._loop.call_soon_threadsafe(lost.set)
        for ask in (held.result, lambda: engine.embed("w1"), lambda: [*engine.embed_stream(["w1"])]):
            with pytest.raises(errors.Internal, match="the device is lost: a small step failed"):
                ask()


def test_a_bug_of_the_loop_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor threads: what is held and what comes after is told."""
    before = threading.active_count()
    engine = Engine(random_model("tiny-bert"))

    def plan(_: Scheduler) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr(Scheduler, "plan_step", plan)
    for _ in range(3):
        with pytest.raises(errors.Cancelled):
            engine.embed("w1", timeout=240)
    engine.close()
    assert threading.active_count() <= before


def test_texts_that_cannot_be_read_end_their_stream() -> None:
    """The error is the caller's own, and the engine goes on."""

    def broken() -> Iterator[str]:
        yield from TEXTS
        raise OSError("the file is gone")

    with Engine(random_model("tiny-bert")) as engine:
        with pytest.raises(OSError, match="the file is gone"):
            [*engine.embed_stream(broken())]
        assert len([*engine.embed_stream(TEXTS)]) == 100


def test_whoever_forgets_it_leaves_nothing() -> None:
    """Dropped without `close`, its threads end."""
    before = threading.active_count()
    engine = Engine(random_model("tiny-bert"))
    thread = engine._channel._pair._thread
    del engine
    gc.collect()
    thread.join()
    assert threading.active_count() <= before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # as grpc's thread, ours tells it
def test_messages_that_cannot_be_made_end_their_call() -> None:
    """Whoever reads the replies is told; the channel goes on."""
    rpc, channel = RPCS[EmbedStreamRequest], local_channel(random_model("tiny-bert"), {})

    def broken() -> Iterator[EmbedStreamRequest]:
        yield EmbedStreamRequest(id=1, request=EmbedRequest(texts=["w1"]))
        raise OSError("the file is gone")

    stream = channel.stream_stream(rpc.path, None, rpc.reply)
    with pytest.raises(grpc.RpcError) as ended:
        [*stream(broken(), metadata=())]
    assert ended.value.code() is grpc.StatusCode.CANCELLED
    batch = EmbedStreamRequest(id=2, request=EmbedRequest(texts=["w1", "w2"]))
    (reply,) = stream(iter([batch]), metadata=())
    assert (reply.id, reply.response.dense.count) == (2, 2)
    channel.close()


def test_a_bug_while_it_starts_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the model was loaded, too; nothing of that stays."""
    before = threading.active_count()

    def broken(*_: Any) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr(pair, "read_files", broken)
    with pytest.raises(AssertionError, match="a bug"):
        Engine(random_model("tiny-bert"))
    while threading.active_count() > before:
        time.sleep(0.001)


FORKED = """
import os, sys
from selvage import Engine
engine = Engine(sys.argv[1])
child = os.fork()
if child == 0:
    try:
        engine.embed("w1")
    except RuntimeError as error:
        print(error, flush=True)
    engine.close()
    os._exit(0)
os.waitpid(child, 0)
print(engine, engine.embed("w1").shape)
"""


async def test_a_fork_is_told_and_an_end_without_close_ends(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", FORKED, random_model("tiny-bert")),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": python_path()},
        cwd=tmp_path,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    first, second = output.decode().splitlines()
    assert first == "an engine does not survive a fork: make one in each process"
    assert second == f"Engine({random_model('tiny-bert')!r}, timeout=inf) (64,)"

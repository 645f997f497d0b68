"""How an engine ends, and what its callers are told then: nobody waits for ever, and nothing of it stays."""

import asyncio
import gc
import itertools
import os
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from embedded import services
from embedded.options import settings_of
from frontend_service.services import pipeline
from gpu_worker.schedule.driver import DeviceLost, Driver
from gpu_worker.schedule.scheduler import Scheduler
from harness.environment import python_path
from selvage import Engine, errors
from shared.jobs import Job, JobResult
from shared.server.grpc_server import Server
from support.random_models import random_model

pytestmark = pytest.mark.usefixtures("logs_as_they_were")


def thread_count() -> int:
    """Without the two of all clients and engines: that of their event loop, and gRPC's own."""
    names = [thread.name for thread in threading.enumerate()]
    return sum(name != "selvage" and "_poll_wrapper" not in name for name in names)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once a worker has got a job."""
    has_come, answer = threading.Event(), Driver.result_of

    async def noticed(self: Driver, job: Job) -> JobResult:
        has_come.set()
        return await answer(self, job)

    monkeypatch.setattr(Driver, "result_of", noticed)
    return has_come


def test_closing_ends_what_is_under_way(asked: threading.Event) -> None:
    """From another thread, and streams, however far they are; every later call is told, and nothing of it stays."""
    before = thread_count()
    engine = Engine(random_model("tiny-bert"))
    streams = [engine.embed_stream(f"w{number % 90}" for number in itertools.count()) for _ in range(3)]
    for wait, stream in zip((0, 1, 50), streams, strict=True):
        for _ in range(wait):
            next(stream)
    asked.clear()
    ended: list[Exception] = []

    def ask() -> None:
        try:
            engine.embed(["w1 " * 400] * 20_000, truncate=True)
        except Exception as error:
            ended.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    asked.wait()
    engine.close()
    asking.join()
    engine.close()
    assert isinstance(ended[0], errors.Cancelled)
    for stream in streams:
        with pytest.raises(errors.Cancelled):
            for _ in stream:
                pass
    for method in (lambda: engine.embed("w1"), lambda: next(iter(engine.embed_stream(["w1"])))):
        with pytest.raises(errors.Cancelled):
            method()
    del streams, stream
    assert thread_count() <= before


def test_only_its_user_reaches_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its socket lies in a folder of its own, which goes with it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Engine(random_model("tiny-bert")):
        (folder,) = tmp_path.iterdir()
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not [*tmp_path.iterdir()]
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("long" * 30)))
    (tmp_path / ("long" * 30)).mkdir()
    with pytest.raises(RuntimeError, match="is too long for a socket: set TMPDIR to another folder"):
        Engine(random_model("tiny-bert"))


def test_a_lost_device_is_told(monkeypatch: pytest.MonkeyPatch, asked: threading.Event) -> None:
    """To what is held, and to each later call at once: nobody waits for ever."""
    runs, lost, loops = Driver.run, asyncio.Event(), []

    async def run(self: Driver) -> None:
        loops.append(asyncio.get_running_loop())
        running = asyncio.create_task(runs(self))
        await lost.wait()
        running.cancel()
        raise DeviceLost("a small step failed")

    monkeypatch.setattr(Driver, "run", run)
    with Engine(random_model("tiny-bert"), timeout=240) as engine, ThreadPoolExecutor(1) as threads:
        asked.clear()
        held = threads.submit(engine.embed, [f"w{number} " * 400 for number in range(5000)], truncate=True)
        asked.wait()
        loops[0].call_soon_threadsafe(lost.set)
        for ask in (held.result, lambda: engine.embed("w1"), lambda: [*engine.embed_stream(["w1"])]):
            with pytest.raises(errors.Internal, match="the device is lost: a small step failed"):
                ask()


def test_a_bug_of_the_loop_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor threads: what is held and what comes after is told."""
    before = thread_count()
    engine = Engine(random_model("tiny-bert"))

    def plan(_: Scheduler) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr(Scheduler, "plan_step", plan)
    for _ in range(3):
        with pytest.raises(errors.Internal, match="the engine failed; its log says why"):
            engine.embed("w1", timeout=240)
    engine.close()
    assert thread_count() <= before


def test_whoever_forgets_it_leaves_nothing() -> None:
    before = thread_count()
    engine = Engine(random_model("tiny-bert"))
    assert thread_count() > before
    del engine
    gc.collect()
    while thread_count() > before:
        time.sleep(0.001)


def test_a_bug_while_it_starts_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the model was loaded, too; nothing of that stays."""
    before = thread_count()

    def broken(*_: Any) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr(services, "read_files", broken)
    with pytest.raises(AssertionError, match="a bug"):
        Engine(random_model("tiny-bert"))
    while thread_count() > before:
        time.sleep(0.001)


def test_a_start_that_is_broken_off_leaves_the_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """All clients and engines share it; what is under way in a thread ends there."""
    reading, others_ran, waited = threading.Event(), threading.Event(), list[bool]()

    def read(*_: Any) -> None:
        reading.set()
        waited.append(others_ran.wait(10))

    monkeypatch.setattr(services, "read_files", read)
    before = thread_count()

    async def break_off() -> None:
        running = services.running_services(settings_of(random_model("tiny-bert"), {}))
        starting = asyncio.create_task(running.__aenter__())
        await asyncio.to_thread(reading.wait)
        starting.cancel()
        await asyncio.wait([starting])
        assert starting.cancelled()
        others_ran.set()

    asyncio.run(break_off())
    while thread_count() > before:
        time.sleep(0.001)
    assert waited == [True]


def test_closing_leaves_the_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """While texts are still read in a thread."""
    before = thread_count()
    reading, others_ran, waited, stop = threading.Event(), threading.Event(), list[bool](), Server.stop

    def read(_: Any) -> None:
        reading.set()
        waited.append(others_ran.wait(10))

    async def stopped(self: Server) -> None:
        await stop(self)
        asyncio.get_running_loop().call_soon(others_ran.set)

    with Engine(random_model("tiny-bert")) as engine, ThreadPoolExecutor(1) as threads:
        monkeypatch.setattr(pipeline, "_next_chunk", read)
        monkeypatch.setattr(Server, "stop", stopped)
        asking = threads.submit(engine.embed, ["w1 " * 4000], truncate=True)
        reading.wait()
        engine.close()
        with pytest.raises(errors.Cancelled):
            asking.result()
    assert waited == [True]
    assert thread_count() <= before


AT_EXIT = """
import atexit, sys
from gpu_worker.worker import ModelWorker
from selvage import Engine
shut_down = ModelWorker.shut_down

def told(self):
    assert self.serving.done()
    shut_down(self)
    print("shut down", flush=True)

ModelWorker.shut_down = told
engine = Engine(sys.argv[1])
engine.embed("w1 " * 4000, truncate=True)
if sys.argv[2:]:
    atexit.register(engine.close)
"""


@pytest.mark.parametrize("arguments", [[], ["closes"]])
async def test_the_end_of_the_interpreter_ends_it(tmp_path: Path, arguments: list[str]) -> None:
    """Whether or not somebody closes it then: its threads and its folder go, and nothing is complained of."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", AT_EXIT, random_model("tiny-bert"), *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": python_path(), "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
    )
    output, complaints = await process.communicate()
    assert (process.returncode, output, complaints) == (0, b"shut down\n", b"")
    assert not os.listdir(tmp_path)


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


@pytest.mark.slow
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

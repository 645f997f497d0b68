"""Services of tests, forked from processes that have imported, and loaded once, what each would take seconds for.

Such a service is a process of its own that runs its module as `python -m` does: arguments, environment, signals and
exit status are its own. Run as a program, this file is a process that forks.
"""

import asyncio
import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.random_models import random_model

IMPORTED = {
    "frontend_service": ["frontend_service.__main__"],
    "gpu_worker": ["gpu_worker.__main__", "transformers.modeling_utils"],  # which transformers imports when it is used
}
AS_ON_AMX = "TEST_AS_ON_AMX"
"""Where the environment has it, tests and workers multiply as if the processor had matrix units: matrix_units.py."""
ENDS_AS_PYTHON = "TEST_ENDS_AS_PYTHON"
SHARED = "TEST_NURSERY"
"""The folder in which processes fork for all that run tests at the same time."""
LOADED = ("tiny-bert", "tiny-classifier", "tiny-bge-m3")
"""What tests serve most."""


def _load_once() -> None:
    """What the first load of a process does beside loading: it imports, and reads sources.

    What is forked knows the references of these models.
    """
    import torch

    from gpu_worker.device.placement import Placement
    from gpu_worker.model.loading import load
    from support.remembered import remember

    remember(setattr)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # OpenMP's threads would not be there in what is forked, and be waited for
    for model in LOADED:
        load(random_model(model), Placement.choose("cpu", "float32"))
    torch.set_num_threads(threads)


class Forked:
    """As much of asyncio.subprocess.Process as our tests use."""

    def __init__(self, pid: int, outputs: list["Pipe | None"], replies: "Pipe") -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdout, self.stderr = (each and each.reader for each in outputs)
        self._pipes = [each for each in (*outputs, replies) if each]
        self._ended = asyncio.create_task(self._end(replies.reader))

    async def close(self) -> None:
        """Its pipes, and returns when they are."""
        for each in self._pipes:
            await each.close()

    async def wait(self) -> int:
        """The exit status."""
        return await asyncio.shield(self._ended)

    async def communicate(self) -> tuple[bytes, bytes]:
        """All of both outputs, which are pipes."""
        assert self.stdout is not None
        assert self.stderr is not None
        output, errors, _ = await asyncio.gather(self.stdout.read(), self.stderr.read(), self.wait())
        return output, errors

    async def _end(self, replies: asyncio.StreamReader) -> int:
        self.returncode = int(await replies.readline())
        return self.returncode


class Nursery:
    """Starts a process that forks when it is first needed; `start` takes create_subprocess_exec's place."""

    def __init__(self, folder: Path, *, shared: bool = False) -> None:
        """`shared`: somebody else starts them there, and ends them."""
        self._folder, self._shared = folder, shared
        self._parents: dict[str, subprocess.Popen[bytes]] = {}
        self._forked: list[Forked] = []
        self._starting = asyncio.Lock()

    async def start(self, *command: str, **options: Any) -> Any:
        """Our services on this Python are forked; everything else is started as usual."""
        python, flag, module, *arguments = command
        if sys.platform != "linux" or (python, flag) != (sys.executable, "-m") or module not in IMPORTED:
            return await asyncio.create_subprocess_exec(*command, **options)
        address = str(self._folder / module)
        async with self._starting:  # members may be started together
            if not self._shared and module not in self._parents:
                self._parents[module] = parent(self._folder, module)
            await self._listens(module)
        self._forked.append(await _forked(address, arguments, **options))
        return self._forked[-1]

    async def _listens(self, module: str) -> None:
        for _ in range(30_000):  # ten minutes
            if (self._folder / module).exists():
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"nothing forks {module}: {self.said(module)}")

    def said(self, module: str) -> str:
        """What the process that forks wrote while it imported and loaded."""
        return errors_of(self._folder, module).read_text()

    async def close(self) -> None:
        """Ends what forks; what was forked has been stopped by whoever started it."""
        for process in self._parents.values():
            end_parent(process)
        for each in self._forked:
            await each.close()


def errors_of(folder: Path, module: str) -> Path:
    return folder / f"{module}.errors"


def parent(folder: Path, module: str) -> "subprocess.Popen[bytes]":
    """Begins to import; listens in `folder`, by the name of its module, when it is ready to fork."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, __file__, module, str(folder / module)]
    with errors_of(folder, module).open("wb") as file:
        return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stderr=file)


def end_parent(process: "subprocess.Popen[bytes]") -> None:
    """It ends as if whoever started it had gone."""
    process.terminate()
    process.communicate()


async def _forked(
    address: str,
    arguments: list[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdout: int | None = None,
    stderr: int | None = None,
    limit: int = 1 << 16,
    start_new_session: bool = True,
) -> Forked:
    assert start_new_session
    readers: list[Pipe | None] = []
    descriptors = []
    for own, wanted in ((1, stdout), (2, stderr)):
        if wanted == asyncio.subprocess.PIPE:
            reading, writing = os.pipe()
            readers.append(await Pipe.of(reading, limit))
            descriptors.append(writing)
        else:
            readers.append(None)
            descriptors.append(os.dup(own))
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    request = json.dumps({"arguments": arguments, "folder": str(cwd), "environment": dict(env)}).encode()
    socket.send_fds(connection, [len(request).to_bytes(4, "big")], descriptors)
    connection.sendall(request)
    for descriptor in descriptors:
        os.close(descriptor)
    replies = await Pipe.of(connection.detach(), limit)
    return Forked(int(await replies.reader.readline()), readers, replies)


class Pipe(asyncio.StreamReaderProtocol):
    """A pipe or a socket that is read, and closed at its end."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        super().__init__(reader)
        self.reader, self._lost = reader, asyncio.Event()
        self._end: asyncio.ReadTransport

    @classmethod
    async def of(cls, descriptor: int, limit: int) -> "Pipe":
        pipe = cls(asyncio.StreamReader(limit))
        file = os.fdopen(descriptor, "rb", buffering=0)
        pipe._end, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: pipe, file)
        return pipe

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._lost.set()

    async def close(self) -> None:
        """Returns when it is closed."""
        self._end.close()
        await self._lost.wait()


def serve(address: str) -> dict[str, Any]:
    """Forks for each connection a process that forks the service and tells its pid, then its status.

    Returns in the service, with what it was asked to be.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{address}.new")
    listener.listen()
    os.rename(f"{address}.new", address)  # who sees it can connect
    while True:
        if sys.stdin in select.select([listener, sys.stdin], [], [])[0]:
            raise SystemExit  # whoever started us is gone
        connection, _ = listener.accept()
        if os.fork() == 0:
            break
        connection.close()
    listener.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, descriptors, _, _ = socket.recv_fds(connection, 4, 2)
    request = json.loads(connection.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL))
    pid = os.fork()
    if pid:
        for descriptor in descriptors:
            os.close(descriptor)
        connection.sendall(b"%d\n" % pid)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        connection.sendall(b"%d\n" % status)
        os._exit(0)
    connection.close()
    for own, descriptor in enumerate(descriptors, 1):
        os.dup2(descriptor, own)
        os.close(descriptor)
    return request


class End:
    """What a forked process does last. Python's own end clears every module: of pages that are shared it makes copies,
    for half a second. Where the environment has ENDS_AS_PYTHON that is done all the same."""

    def __init__(self) -> None:
        self.status: int | None = None
        atexit.register(self)  # before anything is imported, so it is called after whatever others register

    def __call__(self) -> None:
        if self.status is not None and ENDS_AS_PYTHON not in os.environ:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.status)


def become(module: str, request: Mapping[str, Any]) -> int | None:
    """The service as if it had been started by itself; its status, None where Python has to tell it."""
    os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = [module, *request["arguments"]]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as asked:
        if not isinstance(asked.code, int):
            raise
        return asked.code
    return 0


if __name__ == "__main__":
    gc.disable()  # until all is imported
    end = End()
    _, wanted, place = sys.argv
    for name in IMPORTED[wanted]:
        importlib.import_module(name)
    if wanted == "gpu_worker":
        if AS_ON_AMX in os.environ:
            from support.matrix_units import emulate

            units = emulate()  # for as long as this process lives, and what it forks
        _load_once()
    gc.collect()
    gc.enable()
    gc.freeze()  # collections of what is forked would write to pages that are shared
    del sys.modules[f"{wanted}.__main__"]  # it runs again, as the program
    end.status = become(wanted, serve(place))
    sys.exit(end.status)

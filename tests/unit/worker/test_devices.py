"""Which device a thread works on, told by fakes: nothing relies on the first one being the current one."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from gpu_worker.device import transfer
from gpu_worker.device.placement import Placement
from gpu_worker.model import loading
from gpu_worker.worker import create_arrivals_thread
from support.random_models import random_model

SECOND = torch.device("cuda:1")
ON_THE_SECOND = Placement(device=SECOND, dtype=torch.bfloat16)
CPU = Placement(device=torch.device("cpu"), dtype=torch.float32)


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> list[tuple[torch.device, int]]:
    """Devices that were set, and the thread that did."""
    calls: list[tuple[torch.device, int]] = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: calls.append((device, threading.get_ident())))
    return calls


def test_a_load_sets_the_device_of_its_thread(
    entered: list[tuple[torch.device, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """First of all: what is made afterwards without a device's name is made there."""

    def opened(*_: object) -> None:
        assert entered == [(SECOND, threading.get_ident())]
        raise InterruptedError

    monkeypatch.setattr(loading, "open_source", opened)
    with pytest.raises(InterruptedError):
        loading.load(random_model("tiny-bert"), ON_THE_SECOND)


def test_the_thread_that_waits_sets_it_too(entered: list[tuple[torch.device, int]]) -> None:
    arrivals = create_arrivals_thread(ON_THE_SECOND)
    assert arrivals is not None
    with arrivals:
        threads = {arrivals.submit(threading.get_ident).result() for _ in range(3)}
    assert entered == [(SECOND, *threads)]
    assert create_arrivals_thread(CPU) is None
    CPU.enter()
    assert len(entered) == 1


class Stream:
    """Notes what is asked of it, in order."""

    def __init__(self, name: str, told: list[str]) -> None:
        self.name, self._told = name, told

    def wait_stream(self, other: "Stream") -> None:
        self._told.append(f"{self.name} waits for {other.name}")


class Event:
    """Notes the stream that it is recorded on."""

    def __init__(self, told: list[str]) -> None:
        self._told = told

    def record(self, stream: Stream) -> None:
        self._told.append(f"event on {stream.name}")

    def synchronize(self) -> None:
        self._told.append("waited for")


class Cuda:
    """Its streams, as far as a download uses them; copies are told by `There`."""

    def __init__(self, told: list[str]) -> None:
        self.told = told
        self.current = ""

    def Event(self, *, blocking: bool) -> Event:
        assert blocking, "a thread that waits would keep a core busy"
        return Event(self.told)

    def Stream(self, device: torch.device) -> Stream:
        return Stream(f"beside {device}", self.told)

    def current_stream(self, device: torch.device) -> Stream:
        return Stream(f"computing on {device}", self.told)

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        self.current = stream.name
        yield
        self.current = ""


class There(torch.Tensor):
    """Bytes of a device."""

    cuda: Cuda

    def record_stream(self, stream: Stream) -> None:  # type: ignore[override]
        self.cuda.told.append(f"{len(self)} bytes copied by {self.cuda.current}, kept for {stream.name}")


def test_what_comes_down_waits_for_its_own_device_and_nothing_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream beside waits for that of the shipped tensors' device, copies there, and records the event there."""
    cuda = Cuda([])
    monkeypatch.setattr(There, "cuda", cuda, raising=False)
    memory = SimpleNamespace(cuda=cuda, uint8=torch.uint8, empty=lambda size, **_: torch.zeros(size, dtype=torch.uint8))
    monkeypatch.setattr(transfer, "torch", memory)
    transfer._copy_stream.cache_clear()

    def pieces() -> Iterator[tuple[int, torch.Tensor]]:
        cuda.told.append(f"joined by {cuda.current or 'who computes'}")
        yield 0, torch.arange(3, dtype=torch.uint8).as_subclass(There)
        yield 64, torch.arange(5, dtype=torch.uint8).as_subclass(There)

    under_way = transfer.Download(SECOND, pieces(), 69)
    beside = "beside cuda:1"
    assert cuda.told == [
        "joined by who computes",
        f"{beside} waits for computing on cuda:1",
        f"3 bytes copied by {beside}, kept for {beside}",
        f"5 bytes copied by {beside}, kept for {beside}",
        f"event on {beside}",
    ]
    arrived = under_way.wait()
    assert cuda.told[-1] == "waited for"
    assert arrived[:3].tolist() == [0, 1, 2]
    assert arrived[64:].tolist() == [0, 1, 2, 3, 4]
    transfer._copy_stream.cache_clear()

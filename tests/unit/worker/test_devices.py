"""Which device a thread works on, told by fakes: nothing relies on the first one being the current one."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from gpu_worker.__main__ import _arrivals
from gpu_worker.device.placement import Placement
from gpu_worker.model import loading
from gpu_worker.step import shipment
from gpu_worker.step.shipment import Shipment

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
        loading.load("random:tiny-bert", ON_THE_SECOND)


def test_the_thread_that_waits_sets_it_too(entered: list[tuple[torch.device, int]]) -> None:
    """Once; a processor has neither."""
    arrivals = _arrivals(ON_THE_SECOND)
    assert arrivals is not None
    with arrivals:
        threads = {arrivals.submit(threading.get_ident).result() for _ in range(3)}
    assert entered == [(SECOND, *threads)]
    assert _arrivals(CPU) is None
    CPU.enter()
    assert len(entered) == 1


class Event:
    """Notes the stream that it is recorded on."""

    def __init__(self, told: Callable[[str], None]) -> None:
        self._told = told

    def record(self, stream: str = "of the current device") -> None:
        self._told(stream)

    def synchronize(self) -> None:
        """Nothing is under way."""


class There:
    """A tensor of the second device whose bytes lie here."""

    device, dtype = SECOND, torch.uint8

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.shape = tensor, tensor.shape

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor, name)


class Pinned:
    """Memory of the host that a device copies into."""

    def copy_(self, there: There, *, non_blocking: bool) -> None:
        assert non_blocking
        self._copied = there.tensor.clone()

    def numpy(self) -> npt.NDArray[np.uint8]:
        copied: npt.NDArray[np.uint8] = self._copied.numpy()
        return copied


def test_an_event_is_recorded_on_the_stream_of_the_shipped_tensors_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """On that of the current device it would be done before the copy is."""
    streams: list[str] = []
    cuda = SimpleNamespace(Event=lambda: Event(streams.append), current_stream="stream of {}".format)
    fake = SimpleNamespace(cuda=cuda, uint8=torch.uint8, empty=lambda *_, **__: Pinned())
    rows = torch.arange(6, dtype=torch.uint8).view(2, 3)
    sent = Shipment()
    place = sent.add(There(rows))  # type: ignore[arg-type]
    with monkeypatch.context() as patch:
        patch.setattr(shipment, "torch", fake)
        patch.setattr(Shipment, "_joined", lambda _: There(rows.view(-1)))
        sent.send()
    assert streams == ["stream of cuda:1"]
    assert sent.wait().arrays[place].tolist() == rows.tolist()

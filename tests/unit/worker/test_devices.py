"""Which device a thread works on, told by fakes: nothing relies on the first one being the current one."""

import threading

import pytest
import torch

from gpu_worker.device.placement import Placement
from gpu_worker.model import loading
from gpu_worker.worker import create_arrivals_thread
from support.random_models import random_model
from support.tiny import CPU

SECOND = torch.device("cuda:1")
ON_THE_SECOND = Placement(device=SECOND, dtype=torch.bfloat16)


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

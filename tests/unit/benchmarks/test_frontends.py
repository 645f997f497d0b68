"""What is made of the figures of several frontends."""

import pytest

from benchmarks.frontends import by_part

FIGURES = {
    "requests/s": 1000.0,
    "p50 ms": 3.0,
    "clients: CPU ms/request": 0.4,
    "frontend 1: CPU ms/request": 0.3,
    "frontend 2: CPU ms/request": 0.2,
    "frontend 1's event loop: CPU ms/request": 0.25,
    "frontend 2's event loop: CPU ms/request": 0.15,
    "worker 1: CPU ms/request": 0.1,
    "worker 1's event loop: CPU ms/request": 0.08,
    "worker 1: peak MiB": 80.0,
}


def test_frontends_are_added_up() -> None:
    """A request is answered by one of them: their shares of it are shares of the same request."""
    figures = by_part(FIGURES)
    assert figures["frontend: CPU ms/request"] == pytest.approx(0.5)
    assert figures["frontend's event loop: CPU ms/request"] == pytest.approx(0.4)
    assert figures["worker: CPU ms/request"] == 0.1
    assert figures["requests/s"] == 1000
    assert "worker 1: peak MiB" not in figures

"""Makes the fakes importable; and the door http with a fake worker, which its tests share."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from asgi import Door, Worker


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
def door(worker: Worker) -> Door:
    return Door(worker)

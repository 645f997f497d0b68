"""Makes the fakes importable; and the HTTP API with a fake worker, which its tests share."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from asgi import HttpApi, Worker


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
def api(worker: Worker) -> HttpApi:
    return HttpApi(worker)

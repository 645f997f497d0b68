"""What tests of the client share."""

from collections.abc import Iterator

import pytest

from support.fake_frontend import FakeFrontend


@pytest.fixture
def fake() -> Iterator[FakeFrontend]:
    with FakeFrontend() as running:
        yield running

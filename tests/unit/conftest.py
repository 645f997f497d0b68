"""What tests ask for that load models; nothing here is imported where the frontend is tested alone."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def remembered() -> Iterator[None]:
    """Hundreds of tests load the same encoder: its own run of the probes is two thirds of each load."""
    from support.remembered import remember

    with pytest.MonkeyPatch.context() as patch:
        remember(patch.setattr)
        yield

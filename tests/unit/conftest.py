"""What tests ask for that load models; nothing here is imported where the frontend is tested alone."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def remembered() -> Iterator[None]:
    """Hundreds of tests load the same trunk: its own run of the probes is two thirds of each load."""
    from remembered import remember

    with pytest.MonkeyPatch.context() as patch:
        remember(patch.setattr)
        yield


@pytest.fixture(scope="session")
def measured_briefly() -> Iterator[None]:
    """Any way of attention will do, however few runs chose it: test_attention.py compares them all.

    As many as a worker takes last for seconds in bfloat16, for each process and width of a head.
    """
    from gpu_worker.attention import choice

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "ROUNDS", 1)
        yield

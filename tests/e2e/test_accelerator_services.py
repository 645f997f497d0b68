"""The part of the accelerator's run that starts both services, on a processor."""

import pytest

from benchmarks.accelerator import services


@pytest.mark.slow
async def test_frontends_never_map_what_the_worker_does() -> None:
    """PyTorch's libraries are in the worker alone; requests through all four frontends are answered."""
    assert services.missing() == ""
    row = await services.measure("cpu", "small", 1, 0.5)
    mapped = row["contexts"]["mapped"]
    assert mapped.pop("worker") == ["libtorch"]
    assert mapped == {f"frontend {number}": [] for number in range(services.FRONTENDS)}
    assert row["contexts"]["frontends_without_device"]
    assert row["requests"] > 0
    assert not row["errors"]
    assert "error" not in row

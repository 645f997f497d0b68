"""Says plainly where there is nothing to test on."""

from pathlib import Path

import pytest
import torch

FIRST = ("rows", "maxsim", "cuda", "memory", "services", "invariance")
"""Files in their order, since `make gpu` gives them 320 s: kernels of our own first, then what loads many models."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of this folder; files that are not named come last."""
    order = {Path(__file__).with_name(f"test_{name}.py"): place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: order.get(item.path, len(order)) if item.path.parent == Path(__file__).parent else -1)


@pytest.fixture(scope="session", autouse=True)
def cuda() -> torch.device:
    """The device; without one the run ends."""
    if not torch.cuda.is_available():
        pytest.exit("these tests need a CUDA device, and this machine has none", returncode=1)
    return torch.device("cuda:0")

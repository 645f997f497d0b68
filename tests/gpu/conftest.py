"""Says plainly where there is nothing to test on."""

import pytest
import torch

FIRST = ("rows", "maxsim", "cuda", "precision", "forms", "memory", "services", "invariance")
"""Files in their order, since `make gpu` gives them 200 s: kernels of our own first, then what loads many models."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that are not named come last."""
    order = {f"test_{name}.py": place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


@pytest.fixture(scope="session", autouse=True)
def cuda() -> torch.device:
    """The device; without one the run ends."""
    if not torch.cuda.is_available():
        pytest.exit("these tests need a CUDA device, and this machine has none", returncode=1)
    return torch.device("cuda:0")

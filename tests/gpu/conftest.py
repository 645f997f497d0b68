"""Says plainly where there is nothing to test on."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def cuda() -> torch.device:
    """The device; without one the run ends."""
    if not torch.cuda.is_available():
        pytest.exit("these tests need a CUDA device, and this machine has none", returncode=1)
    return torch.device("cuda:0")

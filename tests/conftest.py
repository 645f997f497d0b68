"""How all tests run: the long files first, and properties by examples, not by the clock."""

import pytest
from hypothesis import HealthCheck, settings

LONGEST_FIRST = (
    "unit/worker/test_parity.py",
    "unit/worker/test_maxsim_kernel.py",
    "unit/worker/test_memory.py",
    "unit/worker/test_attention.py",
    "unit/worker/test_late_interaction_files.py",
    "unit/worker/test_repository_heads.py",
    "unit/worker/test_t5.py",
    "unit/worker/test_as_the_reference.py",
    "unit/worker/test_repository_dense.py",
    "unit/worker/test_half_precision.py",
)
"""A process takes a file whenever it is free. A long file that is taken last is waited for by all others."""

settings.register_profile(
    "usual",
    max_examples=60,  # others at every run
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],  # a machine may be busy
)
settings.register_profile("few", settings.get_profile("usual"), max_examples=10)  # where they are run a second time
settings.load_profile("usual")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Services before units, whose files are many and short and fill what is left at the end."""

    def rank(item: pytest.Item) -> tuple[int, bool]:
        path = item.path.as_posix()
        place = next((place for place, each in enumerate(LONGEST_FIRST) if path.endswith(f"tests/{each}")), 99)
        return place, "/tests/e2e/" not in path

    items.sort(key=rank)

"""How all tests run: the long files first, properties by examples, services forked from the same two processes.

With TEST_AS_ON_AMX=1 they run as on a processor with matrix units, whatever this one has: see matrix_units.py.
"""

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from support.forked import AS_ON_AMX, IMPORTED, SHARED, end_parent, parent
from support.random_models import folder_of_the_run

LONGEST_FIRST = (
    "unit/worker/test_parity.py",
    "unit/worker/test_attention.py",
    "unit/worker/test_graphs.py",
    "unit/worker/test_largest_step.py",
    "unit/worker/test_as_the_reference.py",
    "unit/worker/test_late_interaction_files.py",
    "unit/worker/test_maxsim_kernel.py",
    "unit/worker/test_memory.py",
    "unit/worker/test_relative.py",
    "unit/worker/test_every_architecture.py",
    "unit/worker/test_adapters.py",
    "unit/worker/test_adapters_beside.py",
)
"""A process takes a file whenever it is free. A long file that is taken last is waited for by all others."""

SHARED_SERVICES = {
    "minilm": (
        "embed_parity",
        "error_table",
        "frontend_alone",
        "late_chunking",
        "playground",
        "ranking_parity",
        "readme",
        "wheel",
    ),
    "tiny": ("batches", "bulk", "client", "clients", "embed_stream", "engine", "http", "http_fuzz", "tei"),
}
"""Files of e2e that ask the services of its conftest.py: one process starts these, and runs all that ask them."""

gc.disable()  # until all is imported: collections would look for garbage in what stays

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a script's background job has it: processes inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "usual",
    max_examples=30,  # others at every run
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


def pytest_collection_finish() -> None:
    """Collections during tests leave out what was imported: to look through millions of objects takes half a second."""
    gc.freeze()
    gc.enable()


def pytest_report_header() -> list[str]:
    """Failures are read as those of another processor."""
    return ["as on AMX: oneDNN's products round to bfloat16 where they may"] if AS_ON_AMX in os.environ else []


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files stay whole, and those of `SHARED_SERVICES` together."""
    from xdist.scheduler import LoadFileScheduling

    groups = {f"tests/e2e/test_{file}.py": group for group, files in SHARED_SERVICES.items() for file in files}

    class Together(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return "tiny" if file.startswith("tests/e2e/http_clients/") else groups.get(file, file)

    return Together(config, log)


class SharedNursery:
    """Of the process that hands out tests to others: what these fork services from, and load but once for all."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="nursery-"))
        self._parents: list[Any] = []
        os.environ[SHARED] = str(self._folder)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """As soon as one of them knows that services will be needed."""
        if not self._parents and any("/e2e/" in each for each in ids):
            self._parents = [parent(self._folder, module) for module in IMPORTED]

    def pytest_unconfigure(self) -> None:
        for each in self._parents:
            end_parent(each)
        shutil.rmtree(self._folder)
        del os.environ[SHARED]


def pytest_configure(config: pytest.Config) -> None:
    """Where there is one process only, it starts what it needs when it needs it."""
    folder_of_the_run()  # before any other process of the run begins
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        gc.enable()  # it imports no tests
        config.pluginmanager.register(SharedNursery())
    elif AS_ON_AMX in os.environ:
        from support.matrix_units import emulate

        config.add_cleanup(emulate().clear)

"""Ray Data and Daft, as released, each in a venv of its own: the vectors of an engine, whoever is killed meanwhile."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import structlog

from harness.environment import ROOT, python_path
from harness.stack import Stack, stack
from selvage import Engine
from support.random_models import random_model

TITLES = {
    "ray": ("ray::MapWorker(MapBatches(Embedder))", "ray::MapWorker(MapBatches(Embedder)).submit"),
    "daft_on_ray": ("ray::UDFActor", "ray::UDFActor.eval_input"),
    "daft": ("daft.execution.udf_worker", "daft.execution.udf_worker"),
}
"""How each names the processes of its actors: all of them, and one that has work. Daft's own has nothing to tell by."""


def python_of(name: str) -> Path:
    """That of the venv which `make clusters` sets up."""
    return ROOT / ".venv-clusters" / name.partition("_")[0] / "bin" / "python"


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (python_of("ray").exists() and python_of("daft").exists()), reason="`make clusters` sets up Ray and Daft"
    ),
    pytest.mark.timeout(600),
]
MODEL = "tiny-bert"
BAD = {7: ("w1 " * 700, "INPUT_TOO_LONG"), 1501: (None, "EMPTY"), 2999: (" ", "EMPTY")}
TEXTS = [BAD[i][0] if i in BAD else f"w{i % 97} w{i * 7 % 90} " * (1 + i % 30) for i in range(3000)]
GOOD = [i for i in range(len(TEXTS)) if i not in BAD]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("source") / "texts.parquet"
    pq.write_table(pa.table({"id": range(len(TEXTS)), "text": TEXTS}), path)
    return str(path)


@pytest.fixture(scope="module")
def expected() -> Iterator[np.ndarray]:
    """[good texts, 64] float32."""
    with Engine(random_model(MODEL)) as engine:
        yield engine.embed([TEXTS[i] for i in GOOD])
    structlog.reset_defaults()


@pytest.fixture(scope="module")
async def fleet(nursery: object) -> AsyncIterator[Stack]:
    async with stack(random_model(MODEL), frontends=2) as running:
        yield running


@asynccontextmanager
async def program(name: str, home: Path, **asked: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    """`tests/clusters/<name>_program.py`, under way; at the end of the block it has ended, whatever happened."""
    alone = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1"}
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "DO_NOT_TRACK": "true", "RAY_AUTH_MODE": "disabled"}
    process = await asyncio.create_subprocess_exec(
        *(str(python_of(name)), str(ROOT / "tests" / "clusters" / f"{name.partition('_')[0]}_program.py")),
        json.dumps(asked),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env=alone | quiet,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def below(root: int) -> dict[int, str]:
    """Titles of all processes that a process has begun, and of those that these have, by their number."""
    parents, titles = {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            status = (path / "stat").read_text()
            titles[int(path.name)] = (path / "cmdline").read_text().replace("\0", " ").strip()
        except OSError:  # it has ended meanwhile
            continue
        parents[int(path.name)] = int(status.rpartition(")")[2].split()[1])
    found: dict[int, str] = {}
    for number in parents:
        above = number
        while above in parents and above != root:
            above = parents[above]
        if above == root and number != root:
            found[number] = titles.get(number, "")
    return found


def actors(name: str, process: asyncio.subprocess.Process, *, at_work: bool) -> set[int]:
    """The numbers of its actors' processes."""
    title = TITLES[name][at_work]
    return {number for number, told in below(process.pid).items() if title in told}


async def run(name: str, count: int, source: str, folder: Path, *, kill: bool = False, **options: Any) -> str:
    """Runs a program with so many actors, and kills one of them while it has work. What it says as it fails, or ""."""
    options |= {"on_error": "null", "id_column": "id"}
    asked = {"source": source, "folder": str(folder / "o"), "actors": count, "options": options}
    if name.startswith("daft"):
        options |= {"dimensions": 64}
        asked |= {"on_ray": name == "daft_on_ray"}
    seen: set[int] = set()
    killed = 0
    async with program(name, folder, **asked) as process:
        telling = asyncio.create_task(process.communicate())
        while not telling.done():
            await asyncio.sleep(0.1)
            seen |= actors(name, process, at_work=False)
            if kill and not killed and len(seen) == count and (ready := actors(name, process, at_work=True)):
                killed = min(ready)
                os.kill(killed, signal.SIGKILL)
        _, told = await telling
    restarted = kill and name != "daft"
    assert (bool(killed), len(seen)) == (kill, count + restarted), told.decode()
    return told.decode() if process.returncode else ""


def check(folder: Path, expected: np.ndarray) -> None:
    """Each row once, with its vector or its reason: two such tables are within 1e-6 of each other."""
    table = pq.read_table(folder / "o").sort_by("id")
    assert table["id"].to_pylist() == list(range(len(TEXTS)))
    assert np.abs(np.array(table["dense"].take(GOOD).to_pylist()) - expected).max() < 5e-7
    reasons = {i: told.partition(":")[0] for i, told in enumerate(table["reason"].to_pylist()) if told}
    assert reasons == {i: reason for i, (_, reason) in BAD.items()}
    assert all(table["dense"][i].as_py() is None for i in BAD)


@pytest.mark.parametrize("name", ["ray", "daft_on_ray"])
async def test_engines_in_actors(name: str, source: str, expected: np.ndarray, tmp_path: Path) -> None:
    """Three, of which one is killed in the middle."""
    assert await run(name, 3, source, tmp_path, kill=True, model=random_model(MODEL), threads=1) == ""
    check(tmp_path, expected)


@pytest.mark.parametrize("name", ["ray", "daft_on_ray"])
async def test_clients_in_actors(name: str, source: str, fleet: Stack, expected: np.ndarray, tmp_path: Path) -> None:
    """Three that share two frontends; one is killed in the middle."""
    targets = [each.address for each in fleet.frontends]
    assert await run(name, 3, source, tmp_path, kill=True, target=targets) == ""
    check(tmp_path, expected)


async def test_daft_without_ray(source: str, fleet: Stack, expected: np.ndarray, tmp_path: Path) -> None:
    """Three processes of Daft's own runner, with an engine each."""
    assert await run("daft", 3, source, tmp_path, model=random_model(MODEL), threads=1) == ""
    check(tmp_path, expected)


async def test_daft_without_ray_tells_of_a_killed_process(source: str, expected: np.ndarray, tmp_path: Path) -> None:
    """Its own runner starts none again: the query fails. Of what Daft has written by then, each row is right."""
    told = await run("daft", 3, source, tmp_path, kill=True, model=random_model(MODEL), threads=1)
    assert "UDF" in told
    tables = [pq.read_table(path) for path in (tmp_path / "o").glob("*.parquet")]
    places = [place for table in tables for place in table["id"].to_pylist()]
    assert len(places) == len(set(places)) < len(TEXTS)
    vectors = dict(zip(GOOD, expected, strict=True))
    for table in tables:
        for place, vector in zip(table["id"].to_pylist(), table["dense"].to_pylist(), strict=True):
            assert np.abs(np.array(vector) - vectors[place]).max() < 1e-6 if place in vectors else vector is None


ALL = "tiny-bge-m3"
OUTPUTS = ["dense", "sparse", "multi_vector"]
COLUMNS = ["dense", "dense_scales", "sparse_ids", "sparse_weights", "multi_vector", "multi_vector_scales", "reason"]


@pytest.mark.parametrize("name", ["ray", "daft"])
async def test_every_output_comes_through(name: str, tmp_path: Path) -> None:
    """In int8, with scales: lists in lists of any length; Daft is told no dimensions. A row without vectors is null."""
    texts = TEXTS[30:90]
    pq.write_table(pa.table({"id": range(61), "text": [*texts, ""]}), tmp_path / "texts.parquet")
    options = {"model": random_model(ALL), "threads": 1, "output": OUTPUTS, "data_type": "int8", "id_column": "id"}
    asked = {"source": str(tmp_path / "texts.parquet"), "folder": str(tmp_path / "o"), "actors": 1, "options": options}
    if name == "daft":
        asked["columns"] = COLUMNS
    async with program(name, tmp_path, **asked) as process:
        _, told = await process.communicate()
    assert process.returncode == 0, told.decode()
    with Engine(random_model(ALL)) as engine:
        expected = engine.embed(texts, output=OUTPUTS, data_type="int8")
    structlog.reset_defaults()
    *found, empty = pq.read_table(tmp_path / "o").sort_by("id").select(COLUMNS).to_pylist()
    assert empty == dict.fromkeys(COLUMNS) | {"reason": "EMPTY"}
    near(np.array([row["dense"] for row in found]), expected.dense, np.array([row["dense_scales"] for row in found]))
    assert sum(map(bool, expected.sparse)) > 20  # the others have no weight above zero
    for row, weights, rows in zip(found, expected.sparse, expected.multi_vector, strict=True):
        assert row["sparse_ids"] == list(weights)
        assert np.allclose(row["sparse_weights"], list(weights.values()), rtol=0, atol=1e-5)
        near(np.array(row["multi_vector"]), rows, np.array(row["multi_vector_scales"]))


def near(found: np.ndarray, expected: np.ndarray, scales: np.ndarray) -> None:
    """Of int8: rounding may differ by one, rarely; no number of a unit row is over 1."""
    off = np.abs(found.astype(int) - expected)
    assert off.max() <= 1
    assert (off > 0).mean() < 0.01
    assert ((scales > 0) & (scales <= 1 / 127)).all()

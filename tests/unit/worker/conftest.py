"""What tests of the worker share: the cells of the parity table, made once a run, and a thread that computes."""

import shutil
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import torch

from gpu_worker.device.placement import Placement
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.kernels.cpu import library
from gpu_worker.kernels.rows.row_kernels import NativeRows, RowKernels
from gpu_worker.model.loading import load
from gpu_worker.model.source import LoadOptions
from support import graphs, parity
from support.breakages import whole_repository
from support.parity import Oracle, Tables
from support.tiny import write_encoder


@pytest.fixture(scope="session", autouse=True)
def quickly(remembered: None) -> None:
    """Every load."""


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """Family, output and number format -> folder, engine, oracle."""

    @cache
    def folder(name: str, output: str) -> Path:
        path = tmp_path_factory.mktemp("table") / name
        path.mkdir()
        parity.write(path, name, output)
        return path

    @cache
    def engine(name: str, output: str, dtype: str) -> ModelEngine:
        placement = Placement.choose("cpu", dtype)  # type: ignore[arg-type]
        # No text of the table is longer. The gate runs one that is as long as a text may be, over and over.
        return ModelEngine(load(str(folder(name, output)), placement, LoadOptions(max_tokens=max(parity.LONG))))

    @cache
    def oracle(name: str, output: str, dtype: str) -> Oracle:
        return Oracle(folder(name, output), output, getattr(torch, dtype))

    return Tables(folder=folder, engine=engine, oracle=oracle)


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with a tokenizer, as transformers writes it. Not to be changed."""
    folder = tmp_path_factory.mktemp("encoder")
    write_encoder(folder, "tiny-bert")
    return folder


@pytest.fixture
def folder(encoder: Path, tmp_path: Path) -> Path:
    """A copy of the encoder, to be changed."""
    return shutil.copytree(encoder, tmp_path / "model")


@pytest.fixture
def whole(encoder: Path, tmp_path: Path) -> Path:
    """A repository that loads: encoder, pooling, a dense layer, unit length."""
    return whole_repository(encoder, tmp_path / "model")


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Tiny tensors gain nothing from several, and wait for each other on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def on_a_processor() -> Iterator[None]:
    """What tests of graphs have in place of an accelerator."""

    with graphs.on_a_processor():
        yield


@pytest.fixture
def device() -> Iterator[Executor]:
    with ThreadPoolExecutor(1) as made:
        yield made


@pytest.fixture(scope="module")
def modules() -> Iterator[list[ModuleType]]:
    """Of the row kernels, in Triton's interpreter."""
    from support.row_cases import interpreted_rows  # Triton is not everywhere

    with interpreted_rows() as found:
        yield found


@pytest.fixture(scope="module")
def kernel(modules: list[ModuleType]) -> ModuleType:
    return modules[1]


@pytest.fixture(scope="module", params=["triton", "native"])
def kernels(request: pytest.FixtureRequest) -> RowKernels:
    """Triton's, interpreted, and the processor's own."""
    if request.param == "triton":
        made: RowKernels = request.getfixturevalue("kernel").TritonRows()
        return made
    if library.load().missing:
        pytest.skip(library.load().missing)
    return NativeRows(library.load())

"""`selvage.Engine`: without a port it gives what the client gets from both services, errors included."""

import asyncio
import dataclasses
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

from embedded.options import EngineOptions
from gpu_worker.schedule.driver import Driver
from gpu_worker.settings import WorkerSettings
from harness.stack import Stack
from selvage import Client, Engine, errors
from selvage.bulk.__main__ import main as bulk
from shared.server.admission import Bounds
from shared.settings import ServiceSettings
from support.random_models import random_model

EVERY_OUTPUT, CLASSIFIER, LATE = "tiny-bge-m3", "tiny-classifier", "tiny-colbert"
TEXTS = [f"w{number} w{number * 7 % 90} " * (1 + number % 9) for number in range(1100)]
FEW = TEXTS[:12]
OF_A_SERVER = {
    *ServiceSettings.model_fields,
    *("model", "listen", "check", "queue_seconds"),
}

pytestmark = pytest.mark.usefixtures("logs_as_they_were")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(random_model(EVERY_OUTPUT)) as made:
        yield made


def alike(found: Any, expected: Any) -> None:
    """Numbers within what batches differ by, all else the same."""
    if isinstance(expected, np.ndarray):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert np.abs(found.astype(np.float64) - expected.astype(np.float64)).max(initial=0) <= 1e-5
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-5)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        alike([found[name] for name in expected], [*expected.values()])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            alike(one, other)
    elif hasattr(expected, "__dataclass_fields__"):
        assert type(found) is type(expected)
        for name in expected.__dataclass_fields__:
            alike(getattr(found, name), getattr(expected, name))
    else:
        assert found == expected


CALLS: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("embed", [TEXTS], {}),
    ("embed", [TEXTS[0]], {"data_type": "float16", "dimensions": 8}),
    ("embed", [FEW], {"output": ["dense", "sparse", "multi_vector"], "return_token_ids": True}),
    ("embed", [[[5, 6, 7], [8]]], {"data_type": "int8", "output": ["dense"]}),
    ("rerank", ["w1 w2", FEW], {"top_n": 3, "return_documents": True}),
    ("score", [FEW[:3], FEW], {"method": "hybrid"}),
    ("max_sim", [[np.eye(4, dtype=np.float32)], [np.ones((3, 4), dtype=np.float32)]], {}),
    ("tokenize", [FEW], {}),
    ("detokenize", [[[5, 6, 7], [8, 9]]], {}),
    ("models", [], {}),
]


@pytest.mark.parametrize(("method", "arguments", "options"), CALLS, ids=[f"{each[0]}-{each[2]}" for each in CALLS])
async def test_it_gives_what_the_services_give(
    engine: Engine, bge: Stack, method: str, arguments: list[Any], options: dict[str, Any]
) -> None:
    with Client(bge.frontends[0].address) as client:
        expected = await asyncio.to_thread(getattr(client, method), *arguments, **options)
    alike(await asyncio.to_thread(getattr(engine, method), *arguments, **options), expected)


def test_three_loads_by_clocks_that_err_give_one_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs follows from the instructions, not from a moment: only a step's size is timed, and told by no card but
    as `chunk_tokens`."""
    chance, now = random.Random(1), 0.0

    def wild() -> float:
        nonlocal now
        now += chance.choice([1e-7, 1e-3, 10.0]) * chance.random()
        return now

    for clock in ("perf_counter", "thread_time", "process_time"):
        monkeypatch.setattr(time, clock, wild)
    cards = []
    for _ in range(3):
        with Engine(random_model("tiny-qwen3")) as engine:
            cards.append(dataclasses.replace(engine.model(), chunk_tokens=0))
    assert cards[0] == cards[1] == cards[2]


async def test_so_do_other_models(classifier: Stack, colbert: Stack) -> None:
    asked: list[tuple[str, Stack, list[tuple[str, list[Any], dict[str, Any]]]]] = [
        (CLASSIFIER, classifier, [("classify", [FEW], {})]),
        (
            *(LATE, colbert),
            [
                ("rerank", ["w1 w2 w3", FEW], {"explain": True}),
                ("embed", [FEW], {"output": "multi_vector", "input_type": "query"}),
            ],
        ),
    ]
    for model, running, calls in asked:
        with Client(running.frontends[0].address) as client, Engine(random_model(model)) as made:
            for method, arguments, options in calls:
                expected = await asyncio.to_thread(getattr(client, method), *arguments, **options)
                alike(await asyncio.to_thread(getattr(made, method), *arguments, **options), expected)


REFUSED: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("embed", [[*TEXTS[:700], "w1 " * 9000, *TEXTS[:300]]], {}),
    ("embed", [["w1", "x" * 5_000_000]], {}),
    ("embed", ["w1"], {"dimensions": 10_000}),
    ("embed", ["w1"], {"model": "another"}),
    ("classify", [["w1"]], {}),
    ("embed", [TEXTS], {"timeout": 1e-4}),
]


@pytest.mark.parametrize(
    ("method", "arguments", "options"), REFUSED, ids=["long", "large", "wide", "model", "task", "late"]
)
async def test_it_refuses_what_the_services_refuse(
    engine: Engine, bge: Stack, method: str, arguments: list[Any], options: dict[str, Any]
) -> None:
    """In the same words, at the same place of the whole input; the calls after it are answered."""
    with Client(bge.frontends[0].address) as client:
        with pytest.raises(errors.SelvageError) as expected:
            await asyncio.to_thread(getattr(client, method), *arguments, **options)
        with pytest.raises(type(expected.value)) as found:
            await asyncio.to_thread(getattr(engine, method), *arguments, **options)
    assert (found.value.reason, found.value.field) == (expected.value.reason, expected.value.field)
    assert found.value.code is expected.value.code
    assert "timeout" in options or found.value.message == expected.value.message
    assert engine.embed("w1").shape == (engine.model().dimensions,)


def test_a_stream_gives_the_rows_of_embed_in_order(engine: Engine) -> None:
    """As many as there are; whoever stops reading stops the reading of texts; what is refused ends it, and so does an
    error of the caller's own."""
    expected = engine.embed(TEXTS)
    assert np.abs(np.stack([*engine.embed_stream(iter(TEXTS))]) - expected).max() < 1e-6
    rows = engine.embed_stream(FEW, output="multi_vector", batch_size=1)
    for found, whole in zip(rows, engine.embed(FEW, output="multi_vector"), strict=True):
        assert np.abs(found - whole).max() < 1e-6
    asked = []

    def endless() -> Iterator[str]:
        while True:
            asked.append(1)
            yield "w1 w2"

    some = engine.embed_stream(endless())
    assert np.abs(next(some) - engine.embed("w1 w2")).max() < 1e-6
    some.close()
    assert len(asked) < 10_000
    with pytest.raises(errors.InputTooLong) as refused:
        [*engine.embed_stream([*TEXTS[:300], "w1 " * 9000])]
    assert refused.value.field == "texts[300]"

    def broken() -> Iterator[str]:
        yield from FEW
        raise OSError("the file is gone")

    with pytest.raises(OSError, match="the file is gone"):
        [*engine.embed_stream(broken())]
    assert len([*engine.embed_stream(FEW)]) == len(FEW)


def test_the_next_texts_are_prepared_while_some_are_computed(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a large input wait in the loop, with their token ids, before the first of them is answered."""
    there, most, answer = 0, 0, Driver.result_of

    async def counted(self: Driver, job: Any) -> Any:
        nonlocal there, most
        there += 1
        most = max(most, there)
        try:
            return await answer(self, job)
        finally:
            there -= 1

    monkeypatch.setattr(Driver, "result_of", counted)
    engine.embed([f"w{number} " * 20 for number in range(2000)])
    assert most >= 2


@pytest.mark.slow
def test_large_results_of_one_call_do_not_refuse_each_other(engine: Engine) -> None:
    """Together they have more bytes than a frontend lets all its callers have."""
    texts = [f"w{number % 90} " * 500 for number in range(800)]
    found = engine.embed(texts, output="multi_vector")
    assert sum(each.nbytes for each in found) > Bounds().size
    assert len(found) == len(texts)


def test_what_it_can_be_told() -> None:
    """The worker's settings but those of a server; the environment of a worker is not read."""
    assert EngineOptions.__annotations__.keys() == WorkerSettings.model_fields.keys() - OF_A_SERVER
    os.environ["SELVAGE_WORKER_MAX_TOKENS"] = "7"
    try:
        with Engine(random_model("tiny-bert"), served_name=["mine", "org/mine"]) as engine:
            assert engine.model().id == "mine"
            assert engine.model("org/mine").aliases == ("org/mine",)
            assert engine.model().max_tokens > 7
    finally:
        del os.environ["SELVAGE_WORKER_MAX_TOKENS"]
    with pytest.raises(TypeError, match="Engine has no option 'listen'; there are revision"):
        Engine(random_model("tiny-bert"), listen="127.0.0.1:1")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match=r"^max_tokens = -1: Input should be greater than or equal to 0$"):
        Engine(random_model("tiny-bert"), max_tokens=-1)
    with pytest.raises(ValueError, match=r"^model = '/nowhere': there is no such directory"):
        Engine("/nowhere")
    with pytest.raises(ValueError, match=r"^timeout is -1, must be at least 0"):
        Engine("/nowhere", timeout=-1)


def test_files_to_files_in_one_process(engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, folder = tmp_path / "lines.txt", tmp_path / "vectors"
    source.write_text("\n".join(TEXTS))
    command = [str(source), "--output", str(folder), "--engine"]
    assert bulk([*command, random_model(EVERY_OUTPUT), "--engine-option", "threads=1"]) == 0
    rows = np.stack(parquet.read_table(folder)["dense"].to_numpy())
    assert np.abs(rows - engine.embed(TEXTS)).max() < 1e-6
    capsys.readouterr()
    assert bulk([*command, "/nowhere"]) == 1
    assert capsys.readouterr().err.startswith("--engine: model = '/nowhere': there is no such directory")

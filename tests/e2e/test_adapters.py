"""Adapters over one base, through both services and through `Engine`: named, listed, and each with its own rows."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from harness.stack import Stack, stack
from selvage import Engine
from selvage.v1 import embedding_pb2 as pb
from selvage.v1 import model_pb2
from support.adapted import peft_rows, write_adapter, write_sentence_model
from support.references import Calls, dense
from support.tiny import write_encoder, write_json

TEXTS = ["w1 w2 w3", "w9 w8 w7 w6 w5 w4", "w11"]
NAMES = ("base", "one", "two")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny BERT, an adapter over it, and another one with a prompt of its own."""
    root = tmp_path_factory.mktemp("models")
    write_encoder(root / "base", "tiny-bert")
    write_adapter(root / "one", root / "base", 1)
    write_sentence_model(root / "two", root / "base", seed=2, use_rslora=True)
    write_json(root / "two", config_sentence_transformers={"prompts": {"query": "w5 "}})
    return {name: root / name for name in NAMES}


@pytest.fixture(scope="module")
async def pair(folders: dict[str, Path], nursery: object) -> AsyncIterator[Stack]:
    """Both services with all of them."""
    worker = {"adapter": f"one={folders['one']},two={folders['two']}"}
    async with stack(str(folders["base"]), worker=worker) as running:
        yield running


async def rows_of(calls: Calls, model: str) -> np.ndarray:
    return dense(await calls.embedding.Embed(pb.EmbedRequest(texts=TEXTS, model=model)))


async def test_a_request_names_the_adapter(pair: Stack, folders: dict[str, Path]) -> None:
    """Requests for all of them at once; one that names none is for the base."""
    calls = Calls(pair.channel)
    base, one, two, unnamed = await asyncio.gather(*(rows_of(calls, model) for model in (*NAMES, "")))
    for name, rows in (("one", one), ("two", two)):
        assert np.abs(rows - peft_rows(folders[name], folders["base"], TEXTS)).max() < 1e-5
    assert np.array_equal(base, unnamed)
    assert min(np.abs(base - rows).max() for rows in (one, two)) > 1e-2


async def test_adapters_are_listed_with_cards_of_their_own(pair: Stack) -> None:
    calls = Calls(pair.channel)
    cards = (await calls.model.ListModels(model_pb2.ListModelsRequest())).cards
    assert [card.id for card in cards] == [*NAMES]
    assert len({card.fingerprint for card in cards}) == 3
    two = (await calls.model.GetModel(model_pb2.GetModelRequest(model="two"))).card
    assert (dict(two.prompts), two.fingerprint) == ({"query": "w5 "}, cards[2].fingerprint)
    assert "an adapter over base: rsLoRA of rank 2 on 3 modules" in two.notice


@pytest.mark.usefixtures("logs_as_they_were")
def test_the_engine_has_them_too(folders: dict[str, Path]) -> None:
    with Engine(folders["base"], adapter=[f"one={folders['one']}"]) as engine:
        rows = engine.embed(TEXTS, model="one")
        assert np.abs(rows - peft_rows(folders["one"], folders["base"], TEXTS)).max() < 1e-5
        assert np.abs(engine.embed(TEXTS) - rows).max() > 1e-2

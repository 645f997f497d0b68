"""Pairs for all end-to-end tests that leave them as they found them: one on real weights, others on tiny ones."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog
from sentence_transformers import SentenceTransformer

from harness.member import ServiceProcess
from harness.stack import Stack, stack
from support.environments import built_wheel
from support.forked import SHARED, Nursery
from support.http_calls import APIS
from support.random_models import random_model
from support.references import Calls, mini_lm_path
from support.remembered import remember

LOGGED = {"log-level": "debug"}


@pytest.fixture(scope="session", autouse=True)
async def nursery(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Nursery]:
    """Where members come from: it saves them seconds of imports."""
    folder = os.environ.get(SHARED)
    nursery = Nursery(Path(folder), shared=True) if folder else Nursery(tmp_path_factory.mktemp("nursery"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServiceProcess, "execute", nursery.start)
        remember(patch.setattr)  # of engines in this process
        yield nursery
    await nursery.close()


@pytest.fixture(scope="session")
async def pair(nursery: Nursery) -> AsyncIterator[Stack]:
    """MiniLM as shipped (256 tokens), one frontend with every door: it takes seconds to load."""
    async with stack("minilm", worker=LOGGED, frontend=LOGGED | APIS) as running:
        yield running


@pytest.fixture(scope="session")
def calls(pair: Stack) -> Calls:
    """The public rpcs of that pair."""
    return Calls(pair.channel)


def shared(model: str) -> Any:
    """A fixture: a pair with a model of random weights, and every door."""

    @pytest.fixture(scope="session")
    async def running(nursery: Nursery) -> AsyncIterator[Stack]:
        async with stack(random_model(model), frontend=APIS) as made:
            yield made

    return running


tiny = shared("tiny-bert")  # dense and token vectors, 640 tokens
bge = shared("tiny-bge-m3")  # dense, sparse and token vectors of one pass
splade = shared("tiny-splade")  # sparse vectors
colbert = shared("tiny-colbert")  # token vectors alone
cross = shared("tiny-cross-encoder")  # a score of two texts
classifier = shared("tiny-classifier")  # three labels


@pytest.fixture(scope="session")
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pip install` of this repository installs."""
    return built_wheel(tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def oracle() -> SentenceTransformer:
    """sentence-transformers on the same weights."""
    return SentenceTransformer(mini_lm_path(), device="cpu")


@pytest.fixture(scope="module")
def logs_as_they_were() -> Iterator[None]:
    """An engine sets up structlog where nobody has; other tests want it as it was."""
    yield
    structlog.reset_defaults()

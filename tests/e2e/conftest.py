"""One pair on real weights for all end-to-end tests that leave it as they found it."""

from collections.abc import AsyncIterator

import pytest
from forked import Nursery
from references import Calls, mini_lm_path
from sentence_transformers import SentenceTransformer

from harness.member import Member
from harness.stack import Stack, stack

LOGGED = {"log-calls": True}


@pytest.fixture(scope="session", autouse=True)
async def nursery(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Nursery]:
    """Where members come from: it saves them seconds of imports."""
    nursery = Nursery(tmp_path_factory.mktemp("nursery"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Member, "execute", nursery.start)
        yield nursery
    await nursery.close()


@pytest.fixture(scope="session")
async def pair(nursery: Nursery) -> AsyncIterator[Stack]:
    """MiniLM as shipped (256 tokens), one frontend."""
    async with stack("minilm", worker=LOGGED, frontend=LOGGED) as running:
        yield running


@pytest.fixture(scope="session")
def calls(pair: Stack) -> Calls:
    """The public rpcs of that pair."""
    return Calls(pair.channel)


@pytest.fixture(scope="session")
def oracle() -> SentenceTransformer:
    """sentence-transformers on the same weights."""
    return SentenceTransformer(mini_lm_path(), device="cpu")

"""One pair on real weights for all end-to-end tests that leave it as they found it."""

from collections.abc import AsyncIterator

import pytest
from references import Calls, mini_lm_path
from sentence_transformers import SentenceTransformer

from harness.stack import Stack, stack


@pytest.fixture(scope="session")
async def pair() -> AsyncIterator[Stack]:
    """MiniLM as shipped (256 tokens), one frontend."""
    async with stack("minilm") as running:
        yield running


@pytest.fixture(scope="session")
def calls(pair: Stack) -> Calls:
    """The public rpcs of that pair."""
    return Calls(pair.channel)


@pytest.fixture(scope="session")
def oracle() -> SentenceTransformer:
    """sentence-transformers on the same weights."""
    return SentenceTransformer(mini_lm_path(), device="cpu")

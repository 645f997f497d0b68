"""What the client tells of texts over the limit: nothing unless the caller says, so that the frontend decides."""

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from support.fake_frontend import KINDS, FakeFrontend, connected

pytestmark = pytest.mark.parametrize("kind", KINDS)
ROWS = [np.ones((2, 3), dtype=np.float32)]
CALLS: dict[str, Callable[..., Awaitable[Any]]] = {
    "embed": lambda client, **said: client.embed(["a"], **said),
    "rerank": lambda client, **said: client.rerank("a", ["b"], **said),
    "score": lambda client, **said: client.score(["a"], ["b"], **said),
    "max_sim": lambda client, **said: client.max_sim(["a"], ROWS, **said),
    "classify": lambda client, **said: client.classify(["a"], **said),
    "classify_tokens": lambda client, **said: client.classify_tokens(["a"], **said),
    "tokenize": lambda client, **said: client.tokenize(["a"], **said),
}


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_says_whether_to_cut_or_says_nothing(fake: FakeFrontend, kind: str, call: str) -> None:
    """An explicit False is another thing than silence: it refuses where the frontend has --auto-truncate too."""
    ask = CALLS[call]
    async with connected(kind, fake.address) as client:
        await ask(client)
        await ask(client, truncate=False)
        await ask(client, truncate=True)
    told = [(message.HasField("truncate"), message.truncate) for message in fake.asked]
    assert told == [(False, False), (True, False), (True, True)]

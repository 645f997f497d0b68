"""Java's own HTTP client, unchanged, against real processes. Spring AI and LangChain4j stand on it."""

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from harness.environment import ROOT
from support.http_calls import TEXTS, same_bits

pytestmark = pytest.mark.skipif(
    shutil.which("javac") is None, reason="Java's compiler is not there: apt-get install default-jdk-headless"
)


async def test_a_post_with_an_offered_upgrade_is_answered(
    url: str, expected: Callable[..., Awaitable[np.ndarray]], tmp_path: Any
) -> None:
    """The offer is ignored: each body arrives whole and has one reply, on the connection that the first one made."""
    bodies = [json.dumps({"input": texts}) for texts in (TEXTS[:1], TEXTS, TEXTS[:3])]
    process = await asyncio.create_subprocess_exec(
        *("java", str(ROOT / "tests" / "clients" / "Post.java"), f"{url}/v1/embeddings", *bodies),
        stdout=asyncio.subprocess.PIPE,
        cwd=tmp_path,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    replies = [line.partition(" ") for line in output.decode().splitlines()]
    assert [status for status, _, _ in replies] == ["200"] * len(bodies)
    for texts, (_, _, reply) in zip((TEXTS[:1], TEXTS, TEXTS[:3]), replies, strict=True):
        rows = [row["embedding"] for row in json.loads(reply)["data"]]
        same_bits(rows, await expected(texts=texts))

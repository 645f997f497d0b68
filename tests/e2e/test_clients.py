"""Haystack's released embedders, unchanged, in a venv of their own, against real processes."""

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from harness.stack import Stack
from selvage.v1.embedding_pb2 import EmbedRequest
from support.programs import Program, program, python_of
from support.references import Calls, dense, near

TEXTS = [f"w{number % 90} w{number * 7 % 90} " * (1 + number % 9) for number in range(300)]

pytestmark = pytest.mark.skipif(
    not python_of("haystack").exists(), reason="`make clients` sets up Haystack; it needs an index"
)


@pytest.fixture(scope="module")
async def haystack() -> AsyncIterator[Program]:
    async with program("haystack", {"HAYSTACK_TELEMETRY_ENABLED": "False"}) as running:
        yield running


async def told_by(haystack: Program, pair: Stack, does: str, texts: list[str], **options: Any) -> dict[str, Any]:
    return await haystack.ask(does, pair.frontends[0].address, texts=texts, options=options)


@pytest.mark.parametrize("normalize", [False, None, pytest.param(True, marks=pytest.mark.slow)])
async def test_haystack_gets_the_vectors_of_embed(haystack: Program, tiny: Stack, normalize: bool | None) -> None:
    """By one stream, by several, and for one text; unit length where it says nothing."""
    asked = EmbedRequest(texts=TEXTS, normalize=normalize is not False)
    expected = dense(await Calls(tiny.channel).embedding.Embed(asked))
    told = await told_by(haystack, tiny, "dense", TEXTS, normalize=normalize)
    near(np.array(told["documents"]), expected, 1e-6)
    near(np.array(told["concurrently"]), expected, 1e-6)
    near(np.array(told["text"]), expected[0], 1e-6)


async def test_haystack_hears_why_it_is_refused(haystack: Program, tiny: Stack) -> None:
    told = await told_by(haystack, tiny, "dense", [*TEXTS, "", *TEXTS])
    assert "INVALID_ARGUMENT" in told["error"]
    assert "Input validation error: inputs is empty" in told["error"]
    told = await told_by(haystack, tiny, "sparse", TEXTS)
    assert "FAILED_PRECONDITION" in told["error"]


async def test_haystack_gets_the_sparse_vectors_of_embed(haystack: Program, splade: Stack) -> None:
    expected = (await Calls(splade.channel).embedding.Embed(EmbedRequest(texts=TEXTS[:40]))).sparse
    told = await told_by(haystack, splade, "sparse", TEXTS[:40])
    found = told["documents"]
    assert [len(indices) for indices, _ in found] == list(expected.lengths)
    assert [index for indices, _ in found for index in indices] == list(expected.indices)
    near(np.array([value for _, values in found for value in values]), expected.values, 1e-5)  # raw rows
    assert told["text"][0] == found[0][0]

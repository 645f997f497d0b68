"""Frameworks that ask HTTP APIs, as released, in a venv of their own, against real processes."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from harness.stack import Stack
from selvage.v1.ranking_pb2 import RerankRequest
from shared.vectors import InputType
from support.http_calls import BOTH, DOCUMENTS, KEY, MODEL, QUERY, TEXTS
from support.programs import Program, program, python_of
from support.references import Calls, near

Embedded = Callable[..., Awaitable[np.ndarray]]


@pytest.fixture(scope="module")
async def frameworks(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Program]:
    """With a home of their own: some look for keys and settings there."""
    if not python_of("frameworks").exists():
        pytest.skip("`make clients` sets up the frameworks; it needs an index")
    home = str(tmp_path_factory.mktemp("home"))
    async with program("frameworks", {"HOME": home, "HAYSTACK_TELEMETRY_ENABLED": "False"}) as running:
        yield running


async def ranks(pair: Stack, top_n: int = len(DOCUMENTS)) -> list[tuple[int, float]]:
    """Places and scores by gRPC."""
    reply = await Calls(pair.channel).ranking.Rerank(
        RerankRequest(query=QUERY, documents=DOCUMENTS, top_n=top_n, normalize=True)
    )
    return [(result.index, result.score) for result in reply.results]


def same_ranks(answer: dict[str, Any], expected: list[tuple[int, float]], name: str = "ranks") -> None:
    assert name in answer, answer
    assert [place for place, _ in answer[name]] == [place for place, _ in expected]
    near(np.array([score for _, score in answer[name]]), np.array([score for _, score in expected]), 1e-6)


async def test_haystacks_ranker_gets_the_ranks_of_rerank(frameworks: Program, tiny: Stack, url: str) -> None:
    """It always sends a bound of 4,096 tokens a document, more than this model takes: a bound is no demand."""
    asked = {"model": MODEL, "query": QUERY, "documents": DOCUMENTS}
    same_ranks(await frameworks.ask("haystack_ranker", url, top_k=3, **asked), await ranks(tiny, 3))


@pytest.mark.parametrize(
    ("provider", "path"),
    [("cohere", "/v1/rerank"), ("jina", "/v1/rerank"), ("text-embeddings-inference", "/rerank")],
)
async def test_the_package_rerankers(frameworks: Program, tiny: Stack, url: str, provider: str, path: str) -> None:
    """In each shape that it knows and this frontend speaks."""
    asked = {"model": MODEL, "provider": provider, "query": QUERY, "documents": DOCUMENTS}
    same_ranks(await frameworks.ask("rerankers_api", f"{url}{path}", **asked), await ranks(tiny))


@pytest.mark.parametrize("does", ["langchain_cohere", "langchain_infinity"])
async def test_langchain_gets_the_vectors_of_embed(
    frameworks: Program, url: str, expected: Embedded, does: str
) -> None:
    """Cohere's class says what a text is, which chooses its prompt; Infinity's says nothing."""
    answer = await frameworks.ask(does, url, model=MODEL, texts=TEXTS)
    sides = (InputType.DOCUMENT, InputType.QUERY) if does == "langchain_cohere" else (InputType.UNSPECIFIED,) * 2
    rows = await expected(texts=TEXTS, input_type=sides[0], normalize=True)
    for way in BOTH:
        assert way in answer, answer
        near(np.array(answer[way]), rows, 1e-6)
    near(np.array(answer["query"]), (await expected(texts=TEXTS[:1], input_type=sides[1], normalize=True))[0], 1e-6)


@pytest.mark.parametrize(
    ("provider", "path"), [("hosted_vllm", "/v1"), ("cohere", "/v1/embed"), ("cohere", "/v2/embed"), ("jina_ai", "/v1")]
)
async def test_litellm_gets_the_vectors_of_embed(
    frameworks: Program, url: str, expected: Embedded, provider: str, path: str
) -> None:
    answer = await frameworks.ask("litellm_embed", f"{url}{path}", model=f"{provider}/{MODEL}", texts=TEXTS)
    side = InputType.DOCUMENT if provider == "cohere" else InputType.UNSPECIFIED
    rows = await expected(texts=TEXTS, input_type=side, normalize=True)
    for way in BOTH:
        assert way in answer, answer
        near(np.array(answer[way]), rows, 1e-6)


@pytest.mark.parametrize("provider", ["hosted_vllm", "cohere", "jina_ai"])
async def test_litellm_gets_the_ranks_of_rerank(frameworks: Program, tiny: Stack, url: str, provider: str) -> None:
    """It sends null for every field that its caller left out."""
    asked = {"model": f"{provider}/{MODEL}", "query": QUERY, "documents": DOCUMENTS}
    answer = await frameworks.ask("litellm_rerank", url, top_n=3, **asked)
    for way in ("ranks", "async"):
        same_ranks(answer, await ranks(tiny, 3), way)


async def test_a_framework_brings_its_key(frameworks: Program, guarded: Any) -> None:
    """As its provider's; a wrong one is told as such."""
    right = await frameworks.ask("langchain_cohere", guarded.http_url, KEY, model=MODEL, texts=TEXTS[:1])
    assert "plain" in right, right
    asked = {"model": f"hosted_vllm/{MODEL}", "texts": ["w1"]}
    wrong = await frameworks.ask("litellm_embed", f"{guarded.http_url}/v1", "sv-wrong", **asked)
    assert "AuthenticationError" in (wrong["error"] + wrong["text"]), wrong

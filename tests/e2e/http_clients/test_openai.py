"""OpenAI's client, LangChain's and LlamaIndex', as released, in a venv of their own; keys of all packages there."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from harness.member import ServiceProcess
from selvage.v1.embedding_pb2 import TokenIds
from support.http_calls import BOTH, KEY, MODEL, TEXTS, decoded, same_bits
from support.programs import Program
from support.references import eventually, near

EMBED = {"model": MODEL, "input": "w1"}


@pytest.mark.parametrize("encoding", [None, "base64", "float"])
async def test_openai_gets_the_vectors_of_embed(
    clients: Program, url: str, expected: Any, encoding: str | None
) -> None:
    """Bit for bit where they travel as bytes, which the client asks for by itself."""
    options = {} if encoding is None else {"encoding_format": encoding}
    told = await clients.ask("openai_embed", url, model=MODEL, input=TEXTS, **options)
    rows = await expected(texts=TEXTS)
    for way in BOTH:
        same_bits(decoded(told[way]) if encoding == "base64" else told[way], rows)
    assert told["model"] == MODEL
    assert told["tokens"] > len(TEXTS)


async def test_openai_asks_for_less_and_for_one(clients: Program, url: str, expected: Any) -> None:
    """`dimensions`, and a text that is in no list."""
    told = await clients.ask("openai_embed", url, model=MODEL, input=TEXTS[0], dimensions=16)
    same_bits(told["plain"], await expected(texts=TEXTS[:1], dimensions=16))


@pytest.mark.parametrize("given", [[[2, 11, 12, 3], [2, 13, 3]], [2, 11, 12, 3]], ids=["lists", "one list"])
async def test_openai_sends_ids(clients: Program, url: str, expected: Any, given: list[Any]) -> None:
    """They are taken as they are, special tokens and all."""
    told = await clients.ask("openai_embed", url, model=MODEL, input=given)
    lists = given if isinstance(given[0], list) else [given]
    same_bits(told["plain"], await expected(tokenized=[TokenIds(ids=ids) for ids in lists]))
    assert told["tokens"] == sum(map(len, lists))


async def test_openai_lists_models(clients: Program, url: str) -> None:
    assert await clients.ask("openai_models", url) == {"listed": [MODEL], "retrieved": [MODEL]}


@pytest.mark.parametrize(
    ("asked", "error", "code", "param"),
    [
        ({"model": "another"}, "openai.NotFoundError", "model_not_found", "model"),
        ({"input": ["w1", 1]}, "openai.BadRequestError", "invalid_input", "input[1]"),
        ({"input": ["w1", "w1 " * 1000]}, "openai.BadRequestError", "input_too_long", "input[1]"),
        ({"dimensions": 1000}, "openai.BadRequestError", "unsupported_dimensions", "dimensions"),
    ],
)
async def test_openai_raises_its_own_errors(
    clients: Program, url: str, asked: dict[str, Any], error: str, code: str, param: str
) -> None:
    """With code and parameter where the client looks for them."""
    told = await clients.ask("openai_embed", url, **(EMBED | asked))
    assert (told["error"], told["code"], told["param"]) == (error, code, param), told
    assert told["request_id"]


async def test_langchain_gets_the_vectors_of_embed(clients: Program, url: str, expected: Any) -> None:
    """Once it is told to send texts: by default it sends the ids of another tokenizer."""
    options = {"check_embedding_ctx_length": False, "dimensions": 16}
    told = await clients.ask("langchain", url, model=MODEL, texts=TEXTS, **options)
    rows = await expected(texts=TEXTS, dimensions=16)
    for way in BOTH:
        same_bits(told[way], rows)
    near(np.array(told["query"]), rows[0], 1e-6)


async def test_llama_index_gets_the_vectors_of_embed(clients: Program, url: str, expected: Any) -> None:
    """As of OpenAI and as of text-embeddings-inference, whose client looks at no status: it quotes our error where it
    wants a list."""
    rows = await expected(texts=TEXTS, normalize=True)
    for does in ("llama_openai", "llama_tei"):
        told = await clients.ask(does, url, model=MODEL, texts=TEXTS)
        for way in BOTH:
            near(np.array(told[way]), rows, 1e-6)
        near(np.array(told["query"]), rows[0], 1e-6)
    told = await clients.ask("llama_tei", url, model=MODEL, texts=["w1", ""])
    assert "inputs[1] is e" in told["text"]


@asynccontextmanager
async def all_that_the_key_may(member: ServiceProcess) -> AsyncIterator[None]:
    """A request with the key is under way, whose body does not end."""
    host, _, port = member.http_url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = ["POST /embed HTTP/1.1", f"Host: {host}", f"Authorization: Bearer {KEY}", "Content-Type: application/json"]
    writer.write("\r\n".join([*head, "Content-Length: 9", "Expect: 100-continue", "", ""]).encode())
    assert b"100" in await reader.readline()  # the frontend waits for the body now
    yield
    writer.write(b"no JSON..")  # the key is free again before this is answered
    assert b"400" in b"".join([await reader.readline(), await reader.readline()])
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize(
    ("does", "asked", "denied", "too_many"),
    [
        ("openai_embed", EMBED, "openai.AuthenticationError", "openai.RateLimitError"),
        (
            *("cohere_embed", {"model": MODEL, "texts": ["w1"], "input_type": "search_query"}),
            *("cohere.UnauthorizedError", "cohere.TooManyRequestsError"),
        ),
        ("hub_features", {"text": "w1"}, *["huggingface_hub.HfHubHTTPError"] * 2),
    ],
)
async def test_every_client_brings_its_key(
    clients: Program, guarded: ServiceProcess, does: str, asked: dict[str, Any], denied: str, too_many: str
) -> None:
    """The right one is answered; a wrong one, and one that asks too much at once, is an error of the client's own."""
    assert "plain" in await clients.ask(does, guarded.http_url, KEY, **asked)
    told = await clients.ask(does, guarded.http_url, "sv-wrong", **asked)
    assert (told["error"], told["status"]) == (denied, 401), told
    assert not any("sv-wrong" in line for line in guarded.log)
    async with all_that_the_key_may(guarded):
        told = await clients.ask(does, guarded.http_url, KEY, **asked)
    assert (told["error"], told["status"], told["retry_after"]) == (too_many, 429, "1"), told


async def test_openai_comes_again_by_itself(clients: Program, guarded: ServiceProcess, expected: Any) -> None:
    """When it was told to; then it gets its vectors."""

    def refused() -> int:
        return sum(each.get("reason") == "OVERLOADED" for each in guarded.events)

    before = refused()
    async with all_that_the_key_may(guarded):
        asking = asyncio.create_task(clients.ask("openai_embed", guarded.http_url, KEY, retries=5, **EMBED))
        await eventually(lambda: refused() > before)
    same_bits((await asking)["plain"], await expected(texts=["w1"]))

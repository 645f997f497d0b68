"""Released clients of HTTP, unchanged, in a venv of their own, against real processes."""

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from references import Calls, dense, eventually, near

from frontend_service.api_keys import hashed
from harness.member import Member
from harness.stack import Stack, stack
from selvage.v1.classification_pb2 import ClassifyRequest
from selvage.v1.embedding_pb2 import EmbedRequest, TokenIds
from selvage.v1.ranking_pb2 import RerankRequest
from shared.services import PUBLIC_SERVICES
from shared.vectors import DataType, InputType

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-clients" / "http" / "bin" / "python"
DOORS = {"doors": "grpc,tei,http"}
MODEL, KEY = "tiny-bert", "sv-the-key-of-search"
TEXTS = [("w1 " * (number % 9) + f"w{number} w{number * 7 % 90}") for number in range(40)]
QUERY, DOCUMENTS = "w1 w2", ["w3 w4", "w2 w1 w5", "w8", "w1 w2", "w9 w7 w6"]
BOTH = ("plain", "async")

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="`make clients` sets up the clients; it needs an index")


class Clients:
    """All packages in one process, `tests/clients/http_client.py`, which takes seconds to import them."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process, self._one_at_a_time = process, asyncio.Lock()

    async def ask(self, does: str, url: str, key: str = "any", **asked: Any) -> dict[str, Any]:
        """What it tells: of a success or of an error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = json.dumps({"does": does, "url": url, "key": key, **asked})
        async with self._one_at_a_time:
            self._process.stdin.write(line.encode() + b"\n")
            told: dict[str, Any] = json.loads(await self._process.stdout.readline())
        return told


@pytest.fixture(scope="module")
async def clients(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Clients]:
    """With a home of their own: some look for keys and settings there."""
    process = await asyncio.create_subprocess_exec(
        *(str(PYTHON), "-I", str(ROOT / "tests" / "clients" / "http_client.py")),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 24,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path_factory.mktemp("home")),
            "HF_HUB_DISABLE_TELEMETRY": "1",
        },
    )
    yield Clients(process)
    assert process.stdin is not None
    process.stdin.close()
    await process.wait()


@pytest.fixture(scope="module")
async def bert(nursery: object) -> AsyncIterator[Stack]:
    """Dense vectors of 64 dimensions."""
    async with stack(f"random:{MODEL}", frontend=DOORS) as running:
        yield running


@pytest.fixture(scope="module")
def url(bert: Stack) -> str:
    return bert.frontends[0].http_url


@pytest.fixture(scope="module")
def expected(bert: Stack) -> Callable[..., Awaitable[np.ndarray]]:
    """[texts, dimensions] float32 of an Embed's fields, by gRPC."""

    async def embedded(**asked: Any) -> np.ndarray:
        return dense(await Calls(bert.channel).embedding.Embed(EmbedRequest(**asked)))

    return embedded


@pytest.fixture(scope="module")
async def guarded(bert: Stack, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Member]:
    """Another frontend of the same worker: who has the key may ask one thing at a time."""
    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys.write_text(f'[[keys]]\nname = "search"\nsha256 = "{hashed(KEY)}"\nrequests_at_once = 1\n')
    flags = {"worker": bert.worker.address, "http-listen": "127.0.0.1:0", "api-keys": keys, "log-calls": True, **DOORS}
    member = Member("frontend_service", PUBLIC_SERVICES, flags)
    await member.start()
    await member.wait_ready()
    yield member
    await member.stop()


def same_bits(told: Any, expected: np.ndarray) -> None:
    assert np.array(told, dtype="<f4").tobytes() == expected.tobytes()


def decoded(told: list[str]) -> np.ndarray:
    """[N, D] float32."""
    return np.array([np.frombuffer(base64.b64decode(each), dtype="<f4") for each in told])


@pytest.mark.parametrize("encoding", [None, "base64", "float"])
async def test_openai_gets_the_vectors_of_embed(
    clients: Clients, url: str, expected: Any, encoding: str | None
) -> None:
    """Bit for bit where they travel as bytes, which the client asks for by itself."""
    options = {} if encoding is None else {"encoding_format": encoding}
    told = await clients.ask("openai_embed", url, model=MODEL, input=TEXTS, **options)
    rows = await expected(texts=TEXTS)
    for way in BOTH:
        same_bits(decoded(told[way]) if encoding == "base64" else told[way], rows)
    assert told["model"] == MODEL
    assert told["tokens"] > len(TEXTS)


async def test_openai_asks_for_less_and_for_one(clients: Clients, url: str, expected: Any) -> None:
    """`dimensions`, and a text that is in no list."""
    told = await clients.ask("openai_embed", url, model=MODEL, input=TEXTS[0], dimensions=16)
    same_bits(told["plain"], await expected(texts=TEXTS[:1], dimensions=16))


@pytest.mark.parametrize("given", [[[2, 11, 12, 3], [2, 13, 3]], [2, 11, 12, 3]], ids=["lists", "one list"])
async def test_openai_sends_ids(clients: Clients, url: str, expected: Any, given: list[Any]) -> None:
    """They are taken as they are, special tokens and all."""
    told = await clients.ask("openai_embed", url, model=MODEL, input=given)
    lists = given if isinstance(given[0], list) else [given]
    same_bits(told["plain"], await expected(tokenized=[TokenIds(ids=ids) for ids in lists]))
    assert told["tokens"] == sum(map(len, lists))


async def test_openai_lists_models(clients: Clients, url: str) -> None:
    assert await clients.ask("openai_models", url) == {"listed": [MODEL], "retrieved": [MODEL]}


@pytest.mark.parametrize(
    ("asked", "error", "code", "param"),
    [
        ({"model": "another"}, "openai.NotFoundError", "model_not_found", "model"),
        ({"input": []}, "openai.BadRequestError", "invalid_input", "input"),
        ({"input": ["w1", 1]}, "openai.BadRequestError", "invalid_input", "input[1]"),
        ({"input": [[1, 5000]]}, "openai.BadRequestError", "invalid_input", "input[0]"),
        ({"input": "w1 " * 1000}, "openai.BadRequestError", "input_too_long", "input[0]"),
        ({"dimensions": 1000}, "openai.BadRequestError", "unsupported_dimensions", "dimensions"),
        ({"encoding_format": "hex"}, "openai.BadRequestError", "invalid_input", "encoding_format"),
    ],
)
async def test_openai_raises_its_own_errors(
    clients: Clients, url: str, asked: dict[str, Any], error: str, code: str, param: str
) -> None:
    """With code and parameter where the client looks for them."""
    told = await clients.ask("openai_embed", url, **({"model": MODEL, "input": "w1"} | asked))
    assert (told["error"], told["code"], told["param"]) == (error, code, param), told
    assert told["request_id"]


async def test_langchain_gets_the_vectors_of_embed(clients: Clients, url: str, expected: Any) -> None:
    """Once it is told to send texts: by default it sends the ids of another tokenizer."""
    options = {"check_embedding_ctx_length": False, "dimensions": 16}
    told = await clients.ask("langchain", url, model=MODEL, texts=TEXTS, **options)
    rows = await expected(texts=TEXTS, dimensions=16)
    for way in BOTH:
        same_bits(told[way], rows)
    same_bits(told["query"], rows[0])


async def test_llama_index_gets_the_vectors_of_embed(clients: Clients, url: str, expected: Any) -> None:
    """As of OpenAI and as of text-embeddings-inference; it makes batches of ten."""
    rows = await expected(texts=TEXTS, normalize=True)
    for does in ("llama_openai", "llama_tei"):
        told = await clients.ask(does, url, model=MODEL, texts=TEXTS)
        for way in BOTH:
            near(np.array(told[way]), rows, 1e-6)
        near(np.array(told["query"]), rows[0], 1e-6)


async def test_llama_index_shows_what_was_wrong(clients: Clients, url: str) -> None:
    """Its client of text-embeddings-inference looks at no status: our error is quoted where it wants a list."""
    told = await clients.ask("llama_tei", url, model=MODEL, texts=["w1", ""])
    assert "inputs[1] is e" in told["text"]


async def test_cohere_gets_the_vectors_of_embed(clients: Clients, bert: Stack, url: str, expected: Any) -> None:
    """In every type at once, after the prompt that belongs to the texts."""
    types = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    asked = {"model": MODEL, "texts": TEXTS, "embedding_types": types, "output_dimension": 16}
    told = await clients.ask("cohere_embed", url, input_type="search_query", **asked)
    same: dict[str, Any] = {"texts": TEXTS, "dimensions": 16, "normalize": True, "input_type": InputType.QUERY}
    rows = await expected(**same)
    small, bits = [
        (await Calls(bert.channel).embedding.Embed(EmbedRequest(**same, data_type=kind))).dense.data
        for kind in (DataType.INT8, DataType.BINARY)
    ]
    for way in BOTH:
        near(np.array(told[way]["float"]), rows, 1e-6)
        same_bits(decoded(told[way]["base64"]), rows)
        assert np.array(told[way]["int8"], dtype=np.int8).tobytes() == small
        assert np.array_equal(np.array(told[way]["uint8"]) - 128, told[way]["int8"])
        assert np.array(told[way]["ubinary"], dtype=np.uint8).tobytes() == bits
        assert np.array_equal(np.array(told[way]["binary"]) + 128, told[way]["ubinary"])
    assert told["texts"] == TEXTS
    assert told["tokens"] > len(TEXTS)


async def test_cohere_sends_texts_as_inputs(clients: Clients, url: str, expected: Any) -> None:
    """As its client does beside images, of which there is no model."""
    asked = {"model": MODEL, "input_type": "search_document"}
    inputs = [{"content": [{"type": "text", "text": text}]} for text in TEXTS]
    told = await clients.ask("cohere_embed", url, inputs=inputs, **asked)
    rows = await expected(texts=TEXTS, normalize=True, input_type=InputType.DOCUMENT)
    near(np.array(told["plain"]["float"]), rows, 1e-6)
    assert told["texts"] == TEXTS
    picture = {"content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}
    told = await clients.ask("cohere_embed", url, inputs=[picture], **asked)
    assert told["error"] == "cohere.BadRequestError", told


async def test_cohere_gets_the_order_of_rerank(clients: Clients, bert: Stack) -> None:
    """Of a reranker and of a model of vectors: all documents and the best ones, by both versions of its API."""
    await reranks(clients, bert, MODEL)
    async with stack("random:tiny-cross-encoder", frontend=DOORS) as running:
        await reranks(clients, running, "tiny-cross-encoder")


async def reranks(clients: Clients, running: Stack, model: str) -> None:
    """As gRPC does."""
    asked = RerankRequest(query=QUERY, documents=DOCUMENTS, normalize=True)
    ranked = (await Calls(running.channel).ranking.Rerank(asked)).results
    order, scores = [each.index for each in ranked], [each.score for each in ranked]
    for top in ({}, {"top_n": 2}):
        asking = {"model": model, "query": QUERY, "documents": DOCUMENTS, **top}
        told = await clients.ask("cohere_rerank", running.frontends[0].http_url, **asking)
        for way in (*BOTH, "first"):
            most = top.get("top_n", len(DOCUMENTS))
            assert [index for index, _ in told[way]] == order[:most]
            near(np.array([score for _, score in told[way]]), scores[:most], 1e-6)


@pytest.mark.parametrize(
    ("does", "asked", "error"),
    [
        ("cohere_embed", {"model": "another", "texts": ["w1"]}, "cohere.NotFoundError"),
        ("cohere_embed", {"model": MODEL, "texts": []}, "cohere.BadRequestError"),
        ("cohere_embed", {"model": MODEL, "texts": ["w1"], "input_type": "image"}, "cohere.BadRequestError"),
        ("cohere_embed", {"model": MODEL, "texts": ["w1 " * 1000], "truncate": "NONE"}, "cohere.BadRequestError"),
        ("cohere_rerank", {"model": "another", "query": "w1", "documents": ["w1"]}, "cohere.NotFoundError"),
        ("cohere_rerank", {"model": MODEL, "query": "w1", "documents": []}, "cohere.BadRequestError"),
    ],
)
async def test_cohere_raises_its_own_errors(
    clients: Clients, url: str, does: str, asked: dict[str, Any], error: str
) -> None:
    """Their body has the message."""
    defaults = {"input_type": "search_document"} if does == "cohere_embed" else {}
    told = await clients.ask(does, url, **(defaults | asked))
    assert told["error"] == error, told
    assert set(told["body"]) == {"message"}


@pytest.mark.parametrize("path", ["", "/embed"])
async def test_the_hub_gets_the_vectors_of_embed(clients: Clients, url: str, expected: Any, path: str) -> None:
    """feature_extraction with all of its options; an endpoint is asked at its root."""
    told = await clients.ask("hub_features", url + path, text=TEXTS)
    for way in BOTH:
        near(np.array(told[way]), await expected(texts=TEXTS, normalize=True), 1e-6)
    options = {"truncate": True, "truncation_direction": "left", "dimensions": 16, "normalize": True}
    told = await clients.ask("hub_features", url + path, text="w1 " * 700 + "w2", prompt_name="query", **options)
    cut = {"truncate": True, "truncation_side": 2, "dimensions": 16, "normalize": True, "prompt_name": "query"}
    near(np.array(told["plain"]), await expected(texts=["w1 " * 700 + "w2"], **cut), 1e-6)


@pytest.mark.parametrize("path", ["", "/similarity"])
async def test_the_hub_compares_sentences(clients: Clients, url: str, expected: Any, path: str) -> None:
    rows = await expected(texts=[QUERY, *DOCUMENTS], normalize=True)
    told = await clients.ask("hub_similarity", url + path, sentence=QUERY, others=DOCUMENTS)
    near(np.array(told["plain"]), rows[1:] @ rows[0], 1e-6)


async def test_the_hub_gets_the_labels_of_classify(clients: Clients) -> None:
    """Best first, at the root and at the path; of one text it wants a list in a list."""
    async with stack("random:tiny-classifier", frontend=DOORS) as running:
        answer = await Calls(running.channel).classification.Classify(ClassifyRequest(texts=["w1"], normalize=True))
        best = sorted(zip(answer.scores, answer.labels, strict=True), reverse=True)
        for path, options in (("", {}), ("/predict", {}), ("", {"top_k": 2})):
            told = await clients.ask("hub_labels", running.frontends[0].http_url + path, text="w1", **options)
            wanted = best[: options.get("top_k")]
            assert [each["label"] for each in told["plain"]] == [label for _, label in wanted]
            near(np.array([each["score"] for each in told["plain"]]), [score for score, _ in wanted], 1e-6)


async def test_the_hub_asks_how_we_are(clients: Clients, url: str) -> None:
    told = await clients.ask("hub_endpoint", url)
    assert told["healthy"]
    assert told["info"]["model_id"] == MODEL


async def test_the_hub_raises_its_own_error(clients: Clients, url: str) -> None:
    """With what was wrong."""
    told = await clients.ask("hub_features", url, text=["w1", ""])
    assert (told["error"], told["status"]) == ("huggingface_hub.HfHubHTTPError", 422)
    assert "inputs[1] is empty" in told["text"]


@dataclass(frozen=True, slots=True)
class Way:
    """Of asking for one vector, and how its package says that it may not, or not now."""

    does: str
    asked: dict[str, Any]
    denied: str
    too_many: str


EMBED = {"model": MODEL, "input": "w1"}
WAYS = [
    Way("openai_embed", EMBED, "openai.AuthenticationError", "openai.RateLimitError"),
    Way(
        *("langchain", {"model": MODEL, "texts": ["w1"], "check_embedding_ctx_length": False}),
        *("openai.AuthenticationError", "openai.RateLimitError"),
    ),
    Way("llama_openai", {"model": MODEL, "texts": ["w1"]}, *("openai.AuthenticationError", "openai.RateLimitError")),
    Way(
        *("cohere_embed", {"model": MODEL, "texts": ["w1"], "input_type": "search_query"}),
        *("cohere.UnauthorizedError", "cohere.TooManyRequestsError"),
    ),
    Way("hub_features", {"text": "w1"}, "huggingface_hub.HfHubHTTPError", "huggingface_hub.HfHubHTTPError"),
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.does)
async def test_every_client_brings_its_key(clients: Clients, guarded: Member, way: Way) -> None:
    """The right one is answered; a wrong one is an error of the client's own."""
    assert "plain" in await clients.ask(way.does, guarded.http_url, KEY, **way.asked)
    told = await clients.ask(way.does, guarded.http_url, "sv-wrong", **way.asked)
    assert (told["error"], told["status"]) == (way.denied, 401), told
    assert not any("sv-wrong" in line for line in guarded.log)


@asynccontextmanager
async def all_that_the_key_may(member: Member) -> AsyncIterator[None]:
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


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.does)
async def test_every_client_is_told_that_it_asks_too_much(clients: Clients, guarded: Member, way: Way) -> None:
    """And when to come again."""
    async with all_that_the_key_may(guarded):
        told = await clients.ask(way.does, guarded.http_url, KEY, **way.asked)
    assert (told["error"], told["status"], told["retry_after"]) == (way.too_many, 429, "1"), told


async def test_openai_comes_again_by_itself(clients: Clients, guarded: Member, expected: Any) -> None:
    """When it was told to; then it gets its vectors."""

    def refused() -> int:
        return sum(each.get("reason") == "OVERLOADED" for each in guarded.events)

    before = refused()
    async with all_that_the_key_may(guarded):
        asking = asyncio.create_task(clients.ask("openai_embed", guarded.http_url, KEY, retries=5, **EMBED))
        await eventually(lambda: refused() > before)
    same_bits((await asking)["plain"], await expected(texts=["w1"]))

"""The door http against its own OpenAPI document: by schemathesis, and by hand what that does not send."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from harness.stack import Stack, stack
from support.http_calls import APIS
from support.random_models import random_model

ROOT = Path(__file__).parents[2]
SCHEMATHESIS = ROOT / ".venv-clients" / "schemathesis" / "bin" / "schemathesis"
# Not that whatever fits the schema is accepted: what a model is for, its limits and its prompts are in no schema.
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
)
JSON = "application/json"

needs_schemathesis = pytest.mark.skipif(
    not SCHEMATHESIS.exists(), reason="`make clients` sets up schemathesis; it needs an index"
)


async def fuzz(running: Stack, folder: Path, *options: str) -> None:
    """Positive and negative data; neither a reply nor the log may show a bug."""
    process = await asyncio.create_subprocess_exec(
        *(str(SCHEMATHESIS), "--no-color", "run", f"{running.frontends[0].http_url}/openapi.json"),
        *("--checks", ",".join(CHECKS), "--continue-on-failure", "--no-shrink", *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=folder,  # where it keeps what it found
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    for member in running.members:
        assert not [event for event in member.events if event["event"] == "bug"]
        assert not any("Traceback" in line for line in member.log)


@needs_schemathesis
async def test_nothing_that_is_sent_is_a_bug(bge: Stack, tmp_path: Path) -> None:
    await fuzz(bge, tmp_path, "--phases", "fuzzing", "--max-examples", "6", "--seed", "1")


@needs_schemathesis
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("model", ["tiny-bge-m3", "tiny-classifier", "tiny-token-classifier", "tiny-cross-encoder"])
async def test_nothing_that_is_sent_is_a_bug_at_length(model: str, tmp_path: Path) -> None:
    """Every field at its bounds, then thousands of other requests, others each time; for each kind of model."""
    async with stack(random_model(model), frontend=APIS) as running:
        await fuzz(running, tmp_path, "--phases", "examples,coverage,fuzzing", "--max-examples", "60")


async def operations(url: str, session: aiohttp.ClientSession) -> tuple[dict[str, Any], list[tuple[str, str, Any]]]:
    """The document, and method, path and operation of each."""
    async with session.get(f"{url}/openapi.json") as reply:
        document = await reply.json()
    found = [
        (method.upper(), path.replace("{model}", "tiny-bge-m3"), operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    return document, found


OPENAI = ("/embeddings", "/pooling", "/score", "/classify", "/detokenize")
"""Paths in the shape of OpenAI beside those of a version."""


def bad(path: str, method: str, taken: set[str]) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """The status that is due, the method, and how it is asked. `taken`: methods of the path."""
    for other in {"GET", "POST", "DELETE", "PUT"} - taken:
        yield 405, other, {} if other == "GET" else {"json": {}}
    if method == "POST":
        yield 415, method, {"data": b"inputs=a", "headers": {"content-type": "application/x-www-form-urlencoded"}}
        yield 415, method, {"data": b"a", "headers": {"content-type": "text/plain; charset=utf-8"}}
        yield 415, method, {"data": b"x", "headers": {"content-type": JSON, "content-encoding": "gzip"}}
        for raw in (b"", b"{", b"\xff\xfe", b"{'a': 1}", b'"\\ud800', b'{"x":' + b"[" * 2_000):
            yield 400, method, {"data": raw, "headers": {"content-type": JSON}}
        wrong = 400 if path.startswith(("/v1/", "/v2/", *OPENAI)) else 422
        for raw in (b"[]", b"null", b"7", b"{}"):
            yield wrong, method, {"data": raw, "headers": {"content-type": JSON}}


async def test_every_path_says_what_is_wrong_in_its_words(bge: Stack, session: aiohttp.ClientSession) -> None:
    """A wrong method, content type and body at every path of the document, which tells the status and the shape."""
    url = bge.frontends[0].http_url
    document, asked = await operations(url, session)
    assert len(asked) > 20
    for method, path, operation in asked:
        documented = {status: reply["content"].get(JSON) for status, reply in operation["responses"].items()}
        taken = {by for by, other, _ in asked if other == path}
        shape = documented["400"]["schema"]["$ref"].rpartition("/")[2]
        wanted = set(document["components"]["schemas"][shape]["required"])
        for status, by, options in bad(path, method, taken):
            async with session.request(by, url + path, **options) as reply:
                told = await reply.json()
                assert reply.status == status, (by, path, options, told)
                assert reply.content_type == JSON
                assert set(told) == wanted, (by, path, options, told)
                if status == 405:
                    assert method in reply.headers["allow"].split(", ")
                else:
                    assert str(status) in documented

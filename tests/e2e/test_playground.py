"""The playground at / of the door http: its files, and what Chromium makes of them."""

import asyncio
import json
import os
import re
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from frontend_service.access.api_keys import hashed
from harness.member import ServiceProcess
from harness.stack import Stack
from selvage.v1 import embedding_pb2, ranking_pb2, vectors_pb2
from shared.server.options import PUBLIC_SERVICES
from support.references import Calls, dense, near

ROOT = Path(__file__).parents[2]
PLAYGROUND = ROOT / "frontend_service" / "api" / "http" / "playground"
PYTHON = ROOT / ".venv-clients" / "playground" / "bin" / "python"
CHROMIUM = Path("/usr/bin/chromium")
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
NAMESPACE = "http://www.w3.org/2000/svg"
LATE = vectors_pb2.SCORING_METHOD_LATE_INTERACTION
KEY = "sv-the-key-of-the-playground"
QUERY, DOCUMENT = "w11 w12 w13", "w14 w15 , w11 w16 w12"
TEXTS = {
    "embed-first": "a quiet harbour",
    "embed-second": "ships at anchor",
    "rerank-query": "boats",
    "rerank-documents": "a loud kitchen\n\n  a quiet harbour\nbread",
    "late-query": QUERY,
    "late-document": DOCUMENT,
}

driven = [
    pytest.mark.skipif(not PYTHON.exists(), reason="`make clients` sets up Playwright; it needs an index"),
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}: apt-get install chromium"),
]


async def visit(url: str, name: str, **options: Any) -> dict[str, Any]:
    """What `tests/clients/playground_client.py` tells."""
    process = await asyncio.create_subprocess_exec(
        *(str(PYTHON), "-I", str(ROOT / "tests" / "clients" / "playground_client.py")),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")},
    )
    asked = {"visit": name, "url": url, "chromium": str(CHROMIUM), **options}
    output, _ = await process.communicate(json.dumps(asked).encode())
    assert process.returncode == 0
    told: dict[str, Any] = json.loads(output)
    return told


def assert_quiet(told: dict[str, Any], url: str, console: tuple[str, ...] = ()) -> None:
    """Nothing was said, lost or asked of others, and nothing keeps people out. `console`: all that may be there."""
    assert tuple(told["console"]) == console
    assert told["failed"] == []
    assert told["hosts"] == [url.removeprefix("http://")]
    assert (told["flaws"], told["unnamed"], told["too_wide"]) == ([], [], False)


async def test_every_file_comes_with_its_type_and_asks_nobody_else(pair: Stack) -> None:
    """The page and all that lies beside it; a policy that would not let it ask others; HEAD as GET."""
    url = pair.frontends[0].http_url
    names = [file.name for file in PLAYGROUND.iterdir() if file.suffix not in (".py", "") and file.name != "index.html"]
    paths = {"/": "index.html"} | {f"/playground/{name}": name for name in names}
    async with aiohttp.ClientSession(url) as session:
        for path, file in paths.items():
            async with session.get(path) as reply:
                text = await reply.text()
                assert (reply.status, reply.content_type) == (200, TYPES[file.rpartition(".")[2]])
                assert reply.headers["content-security-policy"].startswith("default-src 'self';")
                assert reply.headers["cache-control"] == "no-cache"
                assert reply.headers["x-content-type-options"] == "nosniff"
            assert text == (PLAYGROUND / file).read_text()
            assert re.findall(r"(?:https?:)?//[\w.]+\.\w+|data:", text.replace(NAMESPACE, "")) == []
            assert re.findall(r"""(?:href|src|get\(|post\(|from)\s*=?\s*["'`]/""", text) == [], "an absolute path"
            async with session.head(path) as reply:
                assert (reply.status, await reply.text()) == (200, "")
        async with session.get("/playground/nothing.js") as reply:
            assert reply.status == 404
        async with session.post("/", json={"inputs": "a text"}) as reply:
            assert np.shape(await reply.json()) == (1, 384)


class TestDriven:
    """In Chromium."""

    pytestmark = driven

    async def test_a_tour_of_a_model_that_does_all_but_classify(self, pair: Stack) -> None:
        """What is shown is what the gRPC door gives."""
        url, calls = pair.frontends[0].http_url, Calls(pair.channel)
        told = await visit(url, "tour", texts=TEXTS)
        assert_quiet(told, url)
        both = [TEXTS["embed-first"], TEXTS["embed-second"]]
        first, second = dense(await calls.embedding.Embed(embedding_pb2.EmbedRequest(texts=both, normalize=True)))
        assert told["said"]["embed"] == f"Cosine similarity {first @ second:.4f}"
        documents = ["a loud kitchen", "  a quiet harbour", "bread"]
        ranked = await calls.ranking.Rerank(ranking_pb2.RerankRequest(query="boats", documents=documents))
        rows = told["tables"]["rerank"][1:]
        assert [row[2] for row in rows] == [documents[result.index] for result in ranked.results]
        near(np.array([float(row[1]) for row in rows]), [result.score for result in ranked.results], 1e-3)
        assert told["reasons"] == {"classify": "Not with all-MiniLM-L6-v2. It has no labels for texts."}
        assert told["card"]["Outputs"] == "one vector a text, a vector a token"
        assert (told["card"]["Dimensions"], told["card"]["Longest text"]) == ("384", "256 tokens")
        head, *times = told["times"]
        assert head == ["Request", "Status", "Waited", "tokenize", "queue", "compute", "transfer", "postprocess"]
        assert [row[0] for row in times[:2]] == ["POST /decode", "POST /v1/multi-vector"]
        assert all(float(each) >= 0 for each in times[1][2:])

    @pytest.mark.slow
    async def test_the_heat_map_shows_what_a_rerank_explains(self, colbert: Stack) -> None:
        """Rows and columns are tokens with vectors, winners and the score are the worker's. Dark, behind a prefix, at
        360 pixels, where tables scroll by themselves and the page does not."""
        url = colbert.frontends[0].http_url
        told = await visit(url, "tour", texts=TEXTS, dark=True, width=360, prefix="/some/where/")
        assert_quiet(told, url)
        assert told["reasons"]["embed"] == "Not with tiny-colbert. It does not give one vector a text."
        request = ranking_pb2.RerankRequest(query=QUERY, documents=[DOCUMENT], explain=True, method=LATE)
        (result,) = (await Calls(colbert.channel).ranking.Rerank(request)).results
        matches = result.explanation
        (_, *columns), *rows = told["tables"]["late"]
        assert columns == ["[CLS]", "w2", "w14", "w15", "w11", "w16", "w12", "[SEP]"]  # the comma has no vector
        assert [row[0] for row in rows] == [match.query_token for match in matches]
        assert len(rows) == 32
        assert told["winners"] == [
            f"{match.query_token} → {match.document_token} {match.similarity:.2f}" for match in matches
        ]
        assert told["marked"] == [f"★ {match.similarity:.2f} wins" for match in matches]
        score = float(re.findall(r"Score ([\d.-]+):", told["said"]["late"])[0])
        near(np.array(score), result.score, 2e-3)
        assert told["scopes"] == ["col"] * (1 + len(columns)) + ["row"] * len(rows)
        assert len(told["caption"]) == 1

    @pytest.mark.slow
    async def test_keys_and_several_models(self, colbert: Stack, classifier: Stack, tmp_path: Path) -> None:
        """Nothing is asked without a key, a wrong one is refused, the right one stays in the tab; models are chosen."""
        keys = tmp_path / "keys.toml"
        keys.write_text(f'[[keys]]\nname = "playground"\nsha256 = "{hashed(KEY)}"\n')
        flags = {"worker": [colbert.worker.address, classifier.worker.address], "api-keys": keys}
        front = ServiceProcess("frontend_service", PUBLIC_SERVICES, flags | {"http-listen": "127.0.0.1:0"})
        await front.start()
        try:
            await front.wait_ready()
            told = await visit(front.http_url, "keys", wrong="sv-wrong", right=KEY, texts=TEXTS)
        finally:
            await front.stop()
        refused = "Failed to load resource: the server responded with a status of 401 (Unauthorized)"
        assert_quiet(told, front.http_url, (refused,))
        assert (told["without"], told["quiet"]) == ("This service asks for an API key.", True)
        assert told["wrong"] == "Error 401: the API key is not known"
        assert (told["right"], told["again"]) == ("", "")
        assert told["stored"] == {"session": {"selvage-api-key": KEY}, "local": {}, "cookies": ""}
        assert told["sent"] == ["Bearer sv-wrong", f"Bearer {KEY}", None]
        assert told["models"] == ["tiny-classifier", "tiny-colbert"]
        classifier, late = (told["tours"][name] for name in told["models"])
        assert set(classifier["said"]) == {"classify"}
        assert sorted(row[0] for row in classifier["tables"]["classify"][1:]) == ["a", "b", "c"]
        assert set(late["said"]) == {"rerank", "late"}
        assert len(late["marked"]) == 32

"""Every field of the requests that the HTTP API imitates: honoured, refused by name, or without meaning here.

`python tests/unit/frontend/test_http_fields.py` writes docs/http-fields.md.
"""

import json
import sys
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from asgi import JSON, Reply, api_of
from http_fields import hosted, tei, vllm
from http_fields.field import Fate, Request

REQUESTS: tuple[Request, ...] = (*vllm.REQUESTS, *hosted.REQUESTS, *tei.REQUESTS)
"""Requests of all modules of `http_fields`."""
PATHS = sorted({path for request in REQUESTS for path in request.paths})
PROMPTS = {"input_type": "what a text is", "prompt": "a literal prompt", "prompt_name": "a prompt of the model's"}
MODEL = {"model": "which model, where several are served"}
RERANKED = {
    "return_documents": "Cohere's version 1 and Jina's",
    "rank_fields": "Cohere's version 1",
    "max_chunks_per_doc": "Cohere's version 1",
    "max_doc_length": "Jina's",
    "truncation": "Jina's",
    "return_embeddings": "Jina's",
    "top_k": "Voyage's",
}
EMBEDDED = dict.fromkeys(("inputs", "max_tokens", "output_dimension", "priority"), "Cohere's version 2")
POOLED = {field.name: "vLLM's" for field in vllm.EMBED.fields}
HOSTED = {
    **{field.name: "Voyage's" for field in hosted.VOYAGE_EMBEDDINGS.fields},
    **{field.name: "Jina's" for field in hosted.JINA_EMBEDDINGS.fields},
    "modality": "NVIDIA's",
}
SPANS = {
    "spans": "of each input, spans that get a vector each",
    "window_overlap": "documents over the limit are read in windows",
}
OURS: dict[str, dict[str, str]] = {
    **dict.fromkeys(
        ("/v1/embeddings", "/embeddings"),
        {name: why for name, why in PROMPTS.items() if name != "input_type"} | SPANS,
    ),
    "/v1/multi-vector": {
        name: why
        for name, why in (PROMPTS | HOSTED | POOLED | {"return_token_ids": "the ids of a text's vectors"}).items()
        if name not in {field.name for field in hosted.JINA_MULTI_VECTORS.fields}
    },
    "/v1/embed": EMBEDDED,
    **dict.fromkeys(("/pooling", "/v1/pooling"), PROMPTS),
    "/v2/rerank": RERANKED,
    "/rerank": RERANKED | MODEL,
    **dict.fromkeys(
        ("/embed", "/embed_all", "/embed_sparse", "/decode"),
        MODEL | {"input_type": PROMPTS["input_type"]},
    ),
    **{path: {"input_type": PROMPTS["input_type"]} for path in ("/tokenize", "/detokenize")},
    "/similarity": MODEL,
    "/predict": MODEL | {"parameters": "huggingface_hub's"},
}
"""Fields of a path that are in no table of these originals, and whose they are."""
PAGE = Path(__file__).parents[3] / "docs" / "http-fields.md"
HEADERS = (*JSON, ("x-request-id", "the-same"))


class Asking:
    """Asks an API of a request's own model on one of its paths."""

    def __init__(self, request: Request, path: str) -> None:
        self.request, self.path = request, path
        self.api = api_of(**request.card)

    async def reply(self, *fields: tuple[str, Any]) -> Reply:
        """The reply to the body with these fields."""
        body = json.loads(json.dumps(self.request.body))
        for name, value in fields:
            *outer, last = name.split(".")
            place = body
            for key in outer:
                place = place.setdefault(key, {})
            place[last] = value
        self.api.worker.jobs.clear()
        return await self.api.ask(self.path, body, headers=HEADERS)

    async def outcome(self, *fields: tuple[str, Any]) -> tuple[int, Any, list[Any]]:
        """Status, reply and jobs, without what the clock says."""
        reply = await self.reply(*fields)
        content = reply.json if reply.headers["content-type"] == "application/json" else reply.body
        if isinstance(content, dict):
            content.pop("created", None)
        names = ("work", "tokens", "prompt_lengths", "second_segments", "ranges", "priority")
        return reply.status, content, [[getattr(job, name) for name in names] for job in self.api.worker.jobs]


@pytest.mark.parametrize(
    ("request_", "path"),
    [pytest.param(request, path, id=f"{path}-{request.original}") for request in REQUESTS for path in request.paths],
)
async def test_fields_have_the_fates_that_the_table_tells(request_: Request, path: str) -> None:
    """Honoured: the reply or the job differs. Refused: the error names it. Without meaning: neither differs.

    Null is absence of every field that may be absent; without further fields a request is answered.
    """
    asking = Asking(request_, path)
    plain = await asking.outcome()
    assert plain[0] == 200
    for field in request_.fields:
        if field.name not in request_.body and "." not in field.name:
            assert await asking.outcome((field.name, None)) == plain, field.name
        if field.fate is Fate.REFUSED:
            reply = await asking.reply(*field.beside, (field.name, field.value))
            assert reply.status in (400, 422), (field.name, reply.body)
            assert all(field.name.rpartition(".")[2] in words for words in reply.error), field.name
            continue
        without = await asking.outcome(*field.beside) if field.beside else plain
        outcome = await asking.outcome(*field.beside, (field.name, field.value))
        assert (outcome != without) == (field.fate is Fate.HONOURED), (field.name, outcome)
        assert outcome[0] == (404 if field.name == "model" else field.status), (field.name, outcome)


@pytest.mark.parametrize("path", sorted({*PATHS} - {"/rerank", *hosted.LLAMA_CPP[0].paths}))
def test_every_field_of_ours_is_in_a_table(path: str) -> None:
    route = next(route for route in api_of().app.routes if route.path == path and route.method == "POST")
    ours = {
        field.encode_name
        for kind in (route.body_type, *route.other_body_types)
        for field in msgspec.structs.fields(kind)
    }
    theirs = {field.name.partition(".")[0] for request in REQUESTS if path in request.paths for field in request.fields}
    others = set(OURS.get(path, {}))
    assert ours - theirs == others
    assert not theirs & others


def page() -> str:
    """A table for each path as Markdown; paths with equal tables have one."""
    paths: dict[str, list[str]] = {}
    for path in PATHS:
        requests = sorted((request for request in REQUESTS if path in request.paths), key=attrgetter("original"))
        rows = [
            f"| {request.original} | {_with_fate(request, Fate.HONOURED)} | {_with_fate(request, Fate.REFUSED)} |"
            for request in requests
        ]
        others = ", ".join(f"`{name}` ({why})" for name, why in OURS.get(path, {}).items())
        rows += [f"| others | {others} | |"] if others else []
        paths.setdefault("\n".join(["| original | honoured | refused |", "|---|---|---|", *rows, ""]), []).append(path)
    sources = {request.original.partition(",")[0]: request.source.partition(",")[0] for request in REQUESTS}
    return "\n".join(
        [
            "# Fields of imitated requests",
            "",
            "Each field that an original knows is honoured, or refused by an error that names it. What is in no table",
            "changes nothing; one whose name says that it changes answers (a dimension, `top_k`, a prompt) is refused.",
            "`null` is absence of each field that may be absent; a `model` that is not served is 404.",
            "A test holds each line, and `python tests/unit/frontend/test_http_fields.py` writes this page.",
            "",
            *(line for table, named in paths.items() for line in (f"## {', '.join(named)}", "", table)),
            "## Sources",
            "",
            *(f"- {original}: {source}" for original, source in sorted(sources.items())),
            "",
        ]
    )


def _with_fate(request: Request, fate: Fate) -> str:
    """The fields of a request that have a fate, and what is to be said of them."""
    names: dict[str, list[str]] = {}
    for field in request.fields:
        if field.fate is fate:
            names.setdefault(field.why if field.name != "model" else "", []).append(f"`{field.name}`")
    return "; ".join(", ".join(alike) + (f" ({why})" if why else "") for why, alike in names.items())


def test_the_page_is_what_the_tables_say() -> None:
    assert PAGE.read_text() == page(), "python tests/unit/frontend/test_http_fields.py writes it anew"


if __name__ == "__main__":
    PAGE.write_text(page())

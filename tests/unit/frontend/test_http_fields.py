"""Every field of the requests that the HTTP API imitates: honoured, refused by name, or without meaning here.

`python tests/unit/frontend/test_http_fields.py` writes docs/http-fields.md.
"""

import json
import sys
from collections.abc import Iterable, Mapping
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
MODEL = {"model": "which one of several"}
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
    "spans": "spans of each input, each with a vector",
    "window_overlap": "documents over the limit are read in windows",
}
MULTI = {
    "return_token_ids": "the ids of a text's vectors",
    "pool_factor": "the vectors of a document become so many times fewer",
}
OURS: dict[str, dict[str, str]] = {
    **dict.fromkeys(
        ("/v1/embeddings", "/embeddings"),
        {name: why for name, why in PROMPTS.items() if name != "input_type"} | SPANS,
    ),
    "/v1/multi-vector": {
        name: why
        for name, why in (PROMPTS | HOSTED | POOLED | MULTI).items()
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
    """Writes a section for each original, with a row for each of its requests, and the fields that none of them has."""
    originals = sorted({request.original.partition(",")[0] for request in REQUESTS})
    return "\n".join(
        [
            "# Fields of imitated requests",
            "",
            "Each field that an original knows is honoured, or refused by an error that names it. A field in no table",
            "is ignored, unless its name says that it changes answers (`top_k`, a prompt): then it is refused.",
            "`null` is the same as leaving an optional field out. A `model` that is not served is answered with 404.",
            "",
            "A test holds each line, and `python tests/unit/frontend/test_http_fields.py` writes this page.",
            "",
            *(line for original in originals for line in section(original)),
            "## Fields beside those",
            "",
            "| path | also honoured, or refused as its original does |",
            "|---|---|",
            *(f"| {', '.join(paths)} | {fields} |" for fields, paths in _other_fields().items()),
            "",
        ]
    )


def section(original: str) -> list[str]:
    """The table of an original, a row for requests of equal optional fields; below it the reasons of several rows."""
    rows: dict[tuple[tuple[str, Fate, str], ...], list[Request]] = {}
    for request in sorted(REQUESTS, key=attrgetter("original")):
        if request.original.partition(",")[0] == original:
            fields = (field for field in request.fields if field.name not in request.body)
            rows.setdefault(tuple((field.name, field.fate, field.why) for field in fields), []).append(request)
    source = next(iter(rows.values()))[0].source.partition(",")[0]
    reasons = _repeated_reasons([requests[0] for requests in rows.values()])
    heads = ["request, with its required fields", "paths", "optional fields, honoured", "refused"]
    lines = [
        f"## {original}",
        "",
        f"The fields are those of {source}.",
        "",
        f"| {' | '.join(heads)} |",
        "|---|---|---|---|",
    ]
    for requests in rows.values():
        names = dict.fromkeys(f"{request.original.partition(', ')[2]}: {_required(request)}" for request in requests)
        paths = sorted({path for request in requests for path in request.paths})
        cells = [_optional(requests[0], fate, reasons) for fate in (Fate.HONOURED, Fate.REFUSED)]
        lines.append(f"| {'<br>'.join(names)} | {', '.join(paths)} | {' | '.join(cells)} |")
    names_of: dict[str, list[str]] = {}
    for (name, _), reason in reasons.items():
        names_of.setdefault(reason, []).append(f"`{name}`")
    notes = [f"- {', '.join(names)}: {reason}" for reason, names in names_of.items()]
    return [*lines, "", *notes, *[""] * bool(notes)]


def _repeated_reasons(requests: list[Request]) -> dict[tuple[str, Fate], str]:
    """The reason for the fate of each optional field that several requests have, all for the same reason."""
    reasons: dict[tuple[str, Fate], list[str]] = {}
    for request in requests:
        for field in request.fields:
            if field.fate is not Fate.WITHOUT_MEANING and field.name not in ("model", *request.body):
                reasons.setdefault((field.name, field.fate), []).append(field.why)
    return {key: whys[0] for key, whys in reasons.items() if whys[0] and len(whys) > 1 and len(set(whys)) == 1}


def _required(request: Request) -> str:
    """The fields without which a request is refused."""
    fields = [field for field in request.fields if field.name in request.body]
    return _with_reasons([(field.name, field.why) for field in fields])


def _optional(request: Request, fate: Fate, reasons: Mapping[tuple[str, Fate], str]) -> str:
    """The other fields of a request that have a fate, each with its reason unless that stands below the table."""
    fields = [field for field in request.fields if field.fate is fate and field.name not in request.body]
    without = ("model", *(name for name, of_fate in reasons if of_fate is fate))
    return _with_reasons([(field.name, "" if field.name in without else field.why) for field in fields])


def _with_reasons(fields: Iterable[tuple[str, str]]) -> str:
    """Names of fields, those of one reason together and followed by it."""
    names: dict[str, list[str]] = {}
    for name, why in fields:
        names.setdefault(why, []).append(f"`{name}`")
    return "; ".join(", ".join(alike) + (f" ({why})" if why else "") for why, alike in names.items())


def _other_fields() -> dict[str, list[str]]:
    """Paths by the fields that they have beside those of these originals."""
    paths: dict[str, list[str]] = {}
    for path, fields in sorted(OURS.items()):
        paths.setdefault(_with_reasons(fields.items()), []).append(path)
    return paths


def test_the_page_is_what_the_tables_say() -> None:
    assert PAGE.read_text() == page(), "python tests/unit/frontend/test_http_fields.py writes it anew"


if __name__ == "__main__":
    PAGE.write_text(page())

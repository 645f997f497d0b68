"""Every field of the requests that the HTTP API imitates: honoured, refused by name, or without meaning here.

`python tests/unit/frontend/test_http_fields.py` writes docs/http-fields.md.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from asgi import JSON, HttpApi, Told, Worker
from http_fields import cohere, jina, llama_cpp, nim, openai, tei, vllm, voyage
from http_fields.field import Fate, Field, Request

from frontend_service.services.pipeline import ServedModel
from shared.jobs import Encode, Job, JobResult, Rows, SparseRows
from shared.vectors import OutputKind

REQUESTS: tuple[Request, ...] = (
    *openai.REQUESTS,
    *vllm.REQUESTS,
    *cohere.REQUESTS,
    *jina.REQUESTS,
    *nim.REQUESTS,
    *tei.REQUESTS,
    *voyage.REQUESTS,
    *llama_cpp.REQUESTS,
)
"""Requests of all modules of `http_fields`."""
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
POOLED = {field.name: "vLLM's" for field in vllm.EMBEDDINGS[0].fields}
HOSTED = {
    **{field.name: "Voyage's" for field in voyage.EMBEDDINGS[0].fields},
    **{field.name: "Jina's" for field in jina.EMBEDDINGS[0].fields},
    "modality": "NVIDIA's",
}
SPANS = {
    "spans": "spans of each input, each with a vector",
    "window_overlap": "documents over the limit are read in windows",
}
OURS: dict[str, dict[str, str]] = {
    "/v1/embeddings": {name: why for name, why in PROMPTS.items() if name != "input_type"} | SPANS,
    "/embeddings": {name: why for name, why in PROMPTS.items() if name != "input_type"} | SPANS,
    "/v1/multi-vector": {
        name: why
        for name, why in (PROMPTS | HOSTED | POOLED | {"return_token_ids": "the ids of a text's vectors"}).items()
        if name not in {field.name for field in jina.MULTI_VECTORS.fields}
    },
    "/v1/embed": EMBEDDED,
    "/pooling": PROMPTS,
    "/v1/pooling": PROMPTS,
    "/v2/rerank": RERANKED,
    "/rerank": RERANKED | MODEL,
    **dict.fromkeys(
        ("/embed", "/embed_all", "/embed_sparse", "/decode"),
        MODEL | {"input_type": PROMPTS["input_type"]},
    ),
    "/tokenize": {"input_type": PROMPTS["input_type"]},
    "/detokenize": {"input_type": PROMPTS["input_type"]},
    "/similarity": MODEL,
    "/predict": MODEL | {"parameters": "huggingface_hub's"},
}
"""Fields of a path that are in no table of these originals, and whose they are."""
KIN = {"/reranking": "/rerank", "/v1/reranking": "/v1/rerank"}
"""Paths whose fields are those of another."""
PAGE = Path(__file__).parents[3] / "docs" / "http-fields.md"
HEADERS = (*JSON, ("x-request-id", "the-same"))


class Model(Worker):
    """A worker that has token vectors and sparse ones too, where a request asks for them."""

    async def run(self, model: ServedModel, job: Job) -> JobResult:
        result = await super().run(model, job)
        outputs = job.work.outputs if isinstance(job.work, Encode) else frozenset()
        if OutputKind.MULTI_VECTOR in outputs:
            rows = np.ones((job.tokens.total, 8), dtype="<f4").tobytes()
            return replace(result, tokens=Rows(dimensions=8, data=rows), row_lengths=tuple(job.tokens.lengths))
        if OutputKind.SPARSE in outputs:
            weights = SparseRows(lengths=(0,) * len(job.tokens), indices=b"", values=b"")
            return replace(result, sparse=weights)
        return result


APIS: dict[str, tuple[Model, HttpApi]] = {}
"""APIs by the card of their model: one takes longer to make than to ask."""


def api_of(card: Mapping[str, Any]) -> tuple[Model, HttpApi]:
    """An API for all requests to a model."""
    key = repr(card)
    if key not in APIS:
        worker = Model(**card)
        APIS[key] = worker, HttpApi(worker)
    return APIS[key]


async def asked(request: Request, *fields: tuple[str, Any]) -> tuple[Told, list[Any]]:
    """The reply, and what of the jobs depends on the request alone."""
    worker, api = api_of(request.card)
    worker.jobs.clear()
    body = json.loads(json.dumps(request.body))
    for name, value in fields:
        *outer, last = name.split(".")
        place = body
        for key in outer:
            place = place.setdefault(key, {})
        place[last] = value
    told = await api.ask(request.path, body, headers=HEADERS)
    jobs = [
        (job.work, job.tokens, job.prompt_lengths, job.second_segments, job.ranges, job.priority) for job in worker.jobs
    ]
    return told, jobs


def content(told: Told) -> Any:
    """A reply without what the clock says."""
    kind = told.headers["content-type"]
    if kind != "application/json":
        return kind, told.body
    return {key: value for key, value in told.json.items() if key != "created"} if told.body[:1] == b"{" else told.json


def message_of(told: Told) -> tuple[str, str]:
    """The message of an error in any shape, and the field that it names beside that, or again the message."""
    error = told.json.get("error", told.json)
    if isinstance(error, str):
        return error, error
    return error["message"], error.get("param") or error["message"]


def cases() -> list[Any]:
    return list(_cases())


def _cases() -> Iterable[Any]:
    for request in REQUESTS:
        for field in request.fields:
            yield pytest.param(request, field, id=f"{request.path}-{request.original.partition(',')[2]}-{field.name}")


@pytest.mark.parametrize(("request_", "field"), cases())
async def test_a_field_has_the_fate_that_the_table_tells(request_: Request, field: Field) -> None:
    """Honoured: the reply or the job differs. Refused: the error names it. Without meaning: neither differs."""
    without = await asked(request_, *field.beside)
    told, jobs = await asked(request_, *field.beside, (field.name, field.value))
    if field.fate is Fate.REFUSED:
        message, named = message_of(told)
        assert told.status in (400, 422), told.body
        assert field.name.rpartition(".")[2] in message
        assert field.name.rpartition(".")[2] in named
        return
    differs = (told.status, content(told), jobs) != (without[0].status, content(without[0]), without[1])
    assert differs == (field.fate is Fate.HONOURED), told.body
    if field.name != "model":
        assert told.status == field.status, told.body


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: f"{request.path}-{request.original}")
async def test_a_request_without_further_fields_is_answered(request_: Request) -> None:
    assert (await asked(request_))[0].status == 200


@pytest.mark.parametrize(("request_", "field"), cases())
async def test_null_is_absence_of_every_field_that_may_be_absent(request_: Request, field: Field) -> None:
    if field.name in request_.body or "." in field.name:
        return
    without, told = await asked(request_), await asked(request_, (field.name, None))
    assert (told[0].status, content(told[0]), told[1]) == (200, content(without[0]), without[1])


@pytest.mark.parametrize("path", sorted({request.path for request in REQUESTS} - {"/rerank", *KIN}))
def test_every_field_of_ours_is_in_a_table(path: str) -> None:
    route = next(route for route in HttpApi(Worker()).app.routes if route.path == path and route.method == "POST")
    ours = {
        field.encode_name
        for kind in (route.body_type, *route.other_body_types)
        for field in msgspec.structs.fields(kind)
    }
    told = {field.name.partition(".")[0] for request in REQUESTS if request.path == path for field in request.fields}
    own = set(OURS.get(path, {}))
    assert ours - told == own
    assert not told & own


@pytest.mark.parametrize("request_", llama_cpp.REQUESTS, ids=lambda request: f"{request.path}-{request.original}")
async def test_a_path_of_llama_cpp_answers_as_its_kin(request_: Request) -> None:
    """Both forms on both of its paths; of the kin under /v1 that of `documents` alone."""
    kin = replace(request_, path="/rerank" if "texts" in request_.body else KIN[request_.path])
    last = request_.fields[-1]
    told, expected = [await asked(each, (last.name, last.value)) for each in (request_, kin)]
    assert (told[0].status, content(told[0]), told[1]) == (200, content(expected[0]), expected[1])


def page() -> str:
    """Writes a section for each original, with a row for each of its requests, and the fields that none of them has."""
    originals = sorted({request.original.partition(",")[0] for request in REQUESTS})
    return "\n".join(
        [
            "# Fields of imitated requests",
            "",
            "Each field that an original knows is honoured, or refused by an error that names it. A field in no table",
            "changes nothing; if its name says that it changes answers (`top_k`, a prompt), it is refused.",
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
    for request in sorted(REQUESTS, key=lambda request: (request.original, request.path)):
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
        paths = dict.fromkeys(request.path for request in requests)
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

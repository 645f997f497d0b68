"""Fields of OpenAI's and vLLM's requests: what they ask the worker for, and what they make of its scores."""

import math
from base64 import b64decode
from typing import Any

import numpy as np
import pytest
from asgi import HttpApi, Worker
from fakes import WORDS
from http_fields.vllm import CLASSIFIER
from test_token_bounds import CROSS_ENCODER, LONG

from shared.jobs import Encode, Score
from shared.vectors import InputType, OutputKind, ScoringMethod

LATE: dict[str, object] = {
    "outputs": (OutputKind.MULTI_VECTOR,),
    "methods": (ScoringMethod.LATE_INTERACTION,),
    "default_method": ScoringMethod.LATE_INTERACTION,
    "normalizes_multi_vectors": True,
}


async def asked(path: str, body: object, **card: Any) -> tuple[Any, Any]:
    """The reply and the job."""
    worker = Worker(**card)
    told = await HttpApi(worker).ask(path, body)
    assert told.status == 200, told.body
    return told.json, worker.jobs[0]


def words(job: Any) -> list[str]:
    """Each sequence in the words of the vocabulary."""
    ids = np.frombuffer(job.tokens.ids, dtype="<i4")
    return [
        " ".join(WORDS[number] for number in ids[start:stop])
        for start, stop in zip(job.tokens.offsets, job.tokens.offsets[1:], strict=False)
    ]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings", "/pooling"])
@pytest.mark.parametrize("field", ["use_activation", "normalize"])
async def test_vectors_as_the_model_gives_them(path: str, field: str) -> None:
    _, job = await asked(path, {"input": "a", field: False})
    assert isinstance(job.work, Encode)
    assert not job.work.normalize
    _, job = await asked(path, {"input": "a", field: True}, normalizes=False)
    assert job.work.normalize


@pytest.mark.parametrize("field", ["use_activation", "softmax", "activation"])
async def test_logits_of_a_cross_encoder(field: str) -> None:
    """The fake's are 1 and 3."""
    card = CROSS_ENCODER | {"activation": 2}
    body = {"text_1": "a", "text_2": ["b", "c"]}
    logits, scores = await asked("/score", body | {field: False}, **card), await asked("/score", body, **card)
    assert [entry["score"] for entry in logits[0]["data"]] == [1.0, 3.0]
    assert [entry["score"] for entry in scores[0]["data"]] == pytest.approx([1 / (1 + math.exp(-x)) for x in (1, 3)])
    reranked, _ = await asked("/v1/rerank", {"query": "a", "documents": ["b", "c"], field: False}, **card)
    assert [(entry["index"], entry["relevance_score"]) for entry in reranked["results"]] == [(1, 3.0), (0, 1.0)]


@pytest.mark.parametrize(("path", "place"), [("/classify", "probs"), ("/pooling", "data")])
async def test_logits_of_a_classifier(path: str, place: str) -> None:
    logits, _ = await asked(path, {"input": "a", "use_activation": False}, **CLASSIFIER)
    scores, _ = await asked(path, {"input": "a", "use_activation": True}, **CLASSIFIER)
    assert logits["data"][0][place] == [1.0, 3.0]
    assert scores["data"][0][place] == pytest.approx([0.1192029, 0.8807971])


async def test_late_interaction_of_rows_as_the_model_gives_them() -> None:
    for path, body in (
        ("/score", {"text_1": "a", "text_2": ["b"]}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
    ):
        _, plain = await asked(path, body, **LATE)
        _, raw = await asked(path, body | {"use_activation": False}, **LATE)
        assert isinstance(plain.work, Score)
        assert (plain.work.unit_rows, raw.work.unit_rows) == (True, False)


async def test_cosines_stay_cosines() -> None:
    """vLLM compares vectors by cosine, whatever length they have."""
    _, job = await asked("/score", {"text_1": "a", "text_2": ["b"], "use_activation": False})
    assert job.work.unit_rows


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling"])
@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"truncate_prompt_tokens": 4}, "[CLS] a b [SEP]"),
        ({"truncate_prompt_tokens": 4.0}, "[CLS] a b [SEP]"),
        ({"truncate_prompt_tokens": 4, "truncation_side": "left"}, "[CLS] k l [SEP]"),
        ({"truncate_prompt_tokens": 4, "truncation_side": "right"}, "[CLS] a b [SEP]"),
        ({"truncate_prompt_tokens": -1}, "[CLS] a b c d e f g h [SEP]"),
        ({"truncate_prompt_tokens": 8192}, "[CLS] a b c d e f g h [SEP]"),
        ({"truncate_prompt_tokens": 2**64}, "[CLS] a b c d e f g h [SEP]"),
    ],
)
async def test_long_inputs_are_cut_as_asked(path: str, fields: dict[str, Any], kept: str) -> None:
    _, job = await asked(path, {"input": LONG} | fields)
    assert words(job) == [kept]


@pytest.mark.parametrize(
    ("truncate", "kept"),
    [
        (True, "[CLS] a b c d e f g h [SEP]"),
        ("END", "[CLS] a b c d e f g h [SEP]"),
        ("START", "[CLS] e f g h i j k l [SEP]"),
    ],
)
async def test_long_inputs_are_cut_by_the_words_of_jina_and_nvidia(truncate: object, kept: str) -> None:
    _, job = await asked("/v1/embeddings", {"input": LONG, "truncate": truncate})
    assert words(job) == [kept]


async def test_tokens_and_texts_as_vllm_tells_them() -> None:
    """The text as it is, without the model's prompt, however long; special tokens are written too."""
    api = HttpApi(Worker(prompts={"query": "query : "}, default_prompt_name="query"))
    told = (await api.ask("/tokenize", {"prompt": LONG})).json
    ids = [WORDS.index(word) for word in ("[CLS]", *LONG.split(), "[SEP]")]
    assert told == {"count": len(ids), "max_model_len": 10, "tokens": ids, "token_strs": None}
    told = (await api.ask("/tokenize", {"prompt": "", "return_token_strs": True})).json
    assert told["token_strs"] == ["[CLS]", "[SEP]"]
    told = (await api.ask("/tokenize", {"prompt": "a b", "add_special_tokens": False, "return_token_strs": True})).json
    assert (told["count"], told["token_strs"]) == (2, ["a", "b"])
    assert (await api.ask("/detokenize", {"tokens": ids})).json == {"prompt": f"[CLS] {LONG} [SEP]"}


@pytest.mark.parametrize("encoding", ["float", "base64"])
async def test_bits_of_vectors_by_the_words_of_voyage(encoding: str) -> None:
    """As its client reads them: int8 and uint8, eight dimensions each."""
    body = {"input": ["a", "b"], "encoding_format": encoding}
    for output_dtype, kind, expected in (("binary", np.int8, [127]), ("ubinary", np.uint8, [255])):
        told, _ = await asked("/v1/embeddings", body | {"output_dtype": output_dtype})
        rows = [entry["embedding"] for entry in told["data"]]
        read = rows if encoding == "float" else [np.frombuffer(b64decode(row), dtype=kind).tolist() for row in rows]
        assert read == [expected, expected]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/multi-vector"])
@pytest.mark.parametrize("texts", [{"text": "a b"}, [{"text": "a b"}], ["a b", {"text": "c", "image": None}, "d"]])
async def test_texts_may_be_objects(path: str, texts: Any) -> None:
    """Beside plain ones too."""
    worker = Worker()
    await HttpApi(worker).ask(path, {"input": texts})
    entries = texts if isinstance(texts, list) else [texts]
    plain = [entry if isinstance(entry, str) else entry["text"] for entry in entries]
    assert words(worker.jobs[0]) == [f"[CLS] {text} [SEP]" for text in plain]


@pytest.mark.parametrize(
    ("fields", "side"),
    [
        ({"task": "retrieval.query"}, InputType.QUERY),
        ({"task": "retrieval.passage"}, InputType.DOCUMENT),
        ({"task": "text-matching"}, InputType.UNSPECIFIED),
        ({"task": "clustering"}, InputType.UNSPECIFIED),
        ({"input_type": "passage"}, InputType.DOCUMENT),
        ({"input_type": "query", "task": "retrieval.query"}, InputType.QUERY),
    ],
)
async def test_what_a_text_is_by_either_word(fields: dict[str, str], side: InputType) -> None:
    _, job = await asked("/v1/embeddings", {"input": "a"} | fields)
    assert job.work.input_type is side


async def test_the_prompt_of_an_input_type_goes_before_texts_to_label() -> None:
    prompts = {"prompts": {"query": "query : "}}
    _, job = await asked("/pooling", {"input": "a", "input_type": "query"}, **CLASSIFIER, **prompts)
    assert words(job) == ["[CLS] query : a [SEP]"]


@pytest.mark.parametrize(
    ("fields", "pair"),
    [
        ({"truncate_prompt_tokens": 7}, "[CLS] a b [SEP] c d [SEP]"),
        ({"truncate_prompt_tokens": 7, "truncation_side": "left"}, "[CLS] a b [SEP] k l [SEP]"),
        ({"truncate_prompt_tokens": 4096}, "[CLS] a b [SEP] c d e f g [SEP]"),
        ({"max_tokens_per_doc": 1, "max_tokens_per_query": 1}, "[CLS] a [SEP] c [SEP]"),
        ({"max_tokens_per_doc": 3, "truncate_prompt_tokens": 6}, "[CLS] a [SEP] c d [SEP]"),
    ],
)
@pytest.mark.parametrize("path", ["/score", "/v1/rerank", "/v2/rerank", "/rerank"])
async def test_pairs_are_cut_as_asked(path: str, fields: dict[str, Any], pair: str) -> None:
    """`truncate_prompt_tokens` is for the pair, special tokens included, as the model reads it."""
    first, second = "a b", "c d e f g h i j k l"
    body: dict[str, Any] = {"query": first, "documents": [second]}
    if path == "/score":
        body = {"queries": first, "documents": [second]}
    _, job = await asked(path, body | fields, **CROSS_ENCODER)
    assert words(job) == [pair]


async def test_texts_that_are_compared_by_vectors_are_cut_each() -> None:
    body = {"queries": "a b c d", "items": ["e f g h", "i"], "truncate_prompt_tokens": 4, "max_tokens_per_query": 3}
    _, job = await asked("/score", body)
    assert words(job) == ["[CLS] a [SEP]", "[CLS] e f [SEP]", "[CLS] i [SEP]"]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
@pytest.mark.parametrize(("top_n", "count"), [(0, 3), (None, 3), (2, 2), (2.0, 2), (9, 3)])
async def test_how_many_documents_are_told(path: str, top_n: object, count: int) -> None:
    """0 is all, as vLLM has it."""
    told, _ = await asked(path, {"query": "a", "documents": ["b", "c", "d"], "top_n": top_n})
    assert len(told["results"]) == count


@pytest.mark.parametrize(
    "pair", [("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents"), ("queries", "items")]
)
async def test_two_sides_by_four_pairs_of_names(pair: tuple[str, str]) -> None:
    told, job = await asked("/score", {pair[0]: "a", pair[1]: ["b", "c"]})
    assert [entry["score"] for entry in told["data"]] == [1.0, 3.0]
    assert words(job) == ["[CLS] a [SEP]", "[CLS] b [SEP]", "[CLS] c [SEP]"]


async def test_the_name_of_a_reply() -> None:
    """The request's own, or that of the call."""
    api = HttpApi(Worker())
    headers = (("content-type", "application/json"), ("x-request-id", "call"))
    named = await api.ask("/v1/embeddings", {"input": "a", "request_id": "mine"}, headers=headers)
    assert (named.json["id"], named.headers["x-request-id"]) == ("embd-mine", "call")
    assert (await api.ask("/v1/embeddings", {"input": "a"}, headers=headers)).json["id"] == "embd-call"

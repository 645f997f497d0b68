"""How late-interaction models read texts: every form on disk gives what sentence-transformers 6 makes of it."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Normalize
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

from gpu_worker.model.card import card_of
from gpu_worker.model.loading import Model, load
from shared.card import LateInteraction
from shared.errors import ModelRefused
from shared.vectors import InputType, TokenPooling
from support.late_forms import PYLATE, write_native, write_pooled, write_pylate, write_reader, write_stanford
from support.tiny import CPU, ids_of, write_json

pytestmark = pytest.mark.usefixtures("one_thread")
TEXTS = [
    "",
    "w1 w2",
    "Of, some? [unused0] words [Q] and [D]; w3.",
    "[s] [S] [q] [d] [UNUSED0] w3",
    "w9 " * 20,
    "w5, " * 400,
]
SIDES = {"query": InputType.QUERY, "document": InputType.DOCUMENT}
POSITIONS = 640


def cut(ids: list[int], length: int) -> list[int]:
    return ids if len(ids) <= length else [*ids[: length - 1], ids[-1]]


def as_a_frontend_reads(ids: list[int], late: LateInteraction, side: str) -> list[int]:
    ids = cut(ids, late.query_length if side == "query" else late.document_length)
    if side == "query":
        ids += [late.expansion_id] * (late.expansion_length - len(ids))
    return ids


def assert_reads_as_the_oracle(folder: Path) -> Model:
    """Prompts, ids of texts, lengths, expansion, skiplist, unit length, the kind of score."""
    oracle, model = MultiVectorEncoder(str(folder), device="cpu"), load(str(folder), CPU)
    card, late = card_of(model), model.late_interaction
    assert late is not None
    assert card.late_interaction == late
    assert card.prompts == oracle.prompts
    assert card.default_prompt_name == (oracle.default_prompt_name or "")
    assert card.notice in ("", f"not read, for want of a modules.json: {PYLATE}.json")
    assert card.averages_late_interaction == (oracle.similarity_fn_name == "meanmaxsim")
    units = [each for each in oracle if isinstance(each, Normalize) and each.module_input_name == "token_embeddings"]
    assert card.normalizes_multi_vectors == bool(units)
    expansion = oracle[0].query_expansion
    assert late.query_expansion.name == (expansion["strategy"].upper() if expansion else "NONE")
    assert late.expansion_length == (expansion["length"] if expansion else 0)
    assert late.attend_to_expansion == bool(expansion and expansion["attend"])
    assert model.longest == max(card.max_tokens, late.query_length, late.document_length)
    for side, kind in SIDES.items():
        masks = [each for each in oracle if isinstance(each, MultiVectorMask) and side in each.skiplist_tasks]
        known = {int(one) for each in masks if each._skiplist_ids is not None for one in each._skiplist_ids}
        assert list(late.skiplist if late.skips(kind) else ()) == sorted(known)
        for text, ours in zip(TEXTS, ids_of(model, [card.prompts[side] + each for each in TEXTS]), strict=True):
            theirs = oracle.preprocess([text], prompt=oracle.prompts[side], task=side)
            assert as_a_frontend_reads(ours, late, side) == cut(theirs["input_ids"][0].tolist(), POSITIONS)
            expanded = theirs.get("query_expansion_positions", torch.zeros(1, 1))
            if side == "query" and not late.attend_to_expansion:
                assert int(theirs["attention_mask"].sum() + expanded.sum()) == theirs["input_ids"].shape[1]
    return model


MARKED = {"query_prefix": "[Q] ", "document_prefix": "[D] "}
PYLATE_FILES: dict[str, dict[str, Any]] = {
    "as PyLate writes them": MARKED
    | {"query_length": 24, "document_length": 40, "do_query_expansion": True, "attend_to_expansion_tokens": False}
    | {"skiplist_words": [",", "w7", "no such token"]},
    "prefixes alone": MARKED,
    "no prefixes": {"query_length": 20, "document_length": 300, "skiplist_words": ["."]},
    "nothing but a length": {"document_length": 90},
    "nothing but expansion": {"do_query_expansion": True},
    "a prefix on one side": {"query_prefix": "[unused0] ", "document_prefix": None},
    "attended": MARKED | {"attend_to_expansion_tokens": True, "document_length": 200},
    "attended by the old key": MARKED | {"attend_to_mask_tokens": True},
    "not expanded": MARKED | {"do_query_expansion": False, "query_length": 20},
    "expanded, for all it says": MARKED | {"do_query_expansion": None, "query_length": None},
    "expansion null": MARKED | {"query_expansion": None, "query_length": 18, "do_query_expansion": True},
    "expansion given": MARKED
    | {"query_expansion": {"strategy": "min", "length": 12, "token": "[SEP]"}, "query_length": 30},
    "lengths above the limit": MARKED | {"document_length": 500, "query_length": 200, "do_query_expansion": False},
    "lengths above the positions": MARKED | {"document_length": 700},
    "a skiplist that is empty": MARKED | {"skiplist_words": []},
    "a skiplist that is null": MARKED | {"skiplist_words": None},
    "an unknown word in the skiplist, and the unknown token": MARKED | {"skiplist_words": ["[UNK]", "zzz", "w3", "w3"]},
    "a prompt beside the prefixes": MARKED | {"prompts": {"query": "w1 w2: ", "document": "[D] w3 ", "other": "w4 "}},
    "prompts that hold nothing": MARKED | {"prompts": {"query": None}, "default_prompt_name": "query"},
    "a prefix that the tokenizer lacks": {"query_prefix": "[X] ", "document_prefix": "query: "},
    "empty prefixes": {"query_prefix": "", "document_prefix": " "},
    "a mean": MARKED | {"similarity_fn_name": "meanmaxsim"},
    "another similarity": MARKED | {"similarity_fn_name": "cosine"},
}


KINDS = ("ColBERT", "MultiVectorEncoder", "")
BY_TURNS = [
    pytest.param(files, kind, marks=() if kind == "ColBERT" or place % 8 == number else pytest.mark.slow)
    for place, files in enumerate(PYLATE_FILES)
    for number, kind in enumerate(KINDS, -1)
]
"""PyLate's own always, for every fourth file one of the others; all by `make test-slow`."""


@pytest.mark.parametrize(("files", "kind"), BY_TURNS)
def test_keys_of_pylate(encoder: Path, tmp_path: Path, files: str, kind: str) -> None:
    """By PyLate with and without a model_type; and in a model of version 6, where they count as well."""
    described = PYLATE_FILES[files] | ({"model_type": kind} if kind else {})
    write_pylate(tmp_path, encoder, described)
    oracle = MultiVectorEncoder(str(tmp_path), device="cpu")
    masked = any(isinstance(each, MultiVectorMask) for each in oracle)
    if oracle[0].query_expansion and not masked:
        with pytest.raises(ModelRefused, match=r"config_sentence_transformers\.json: \w+ needs a MultiVectorMask"):
            load(str(tmp_path), CPU)
        return
    assert_reads_as_the_oracle(tmp_path)


LOWERING = [
    pytest.param(*each, marks=pytest.mark.slow if sum(each) % 2 else ()) for each in product([False, True], repeat=3)
]
"""Each two of the three together in every way; all three by `make test-slow`."""


@pytest.mark.parametrize(("normalized", "lower", "cased"), LOWERING)
def test_prefixes_that_are_added_tokens(
    encoder: Path, tmp_path: Path, normalized: bool, lower: bool, cased: bool
) -> None:
    """With the trailing space in the token, as PyLate adds them: one token, whoever lowers texts, and when."""
    write_pylate(tmp_path, encoder, MARKED | {"model_type": "ColBERT"}, do_lower_case=lower)
    write_reader(tmp_path, "[Q] ", "[D] ", normalized=normalized, cased=cased)
    model = assert_reads_as_the_oracle(tmp_path)
    ids = ids_of(model, [card_of(model).prompts["query"] + "w1"])[0]
    assert len(ids) == 4


BESIDE_PYLATE: dict[str, dict[str, Any]] = {
    "the query": {"query_length": 40},
    "the document": {"document_length": 90, "max_seq_length": 60},
    "an expansion": {"query_expansion": {"strategy": "min", "length": 8, "attend": True}},
    "no expansion": {"query_expansion": None},
    "no length": {"query_length": None, "document_length": None},
    "a limit": {"max_seq_length": 50},
    "a limit of every call": {"processing_kwargs": {"text": {"max_length": 45}}},
}


@pytest.mark.parametrize("beside", BESIDE_PYLATE)
def test_what_lies_beside_the_transformer_wins(encoder: Path, tmp_path: Path, beside: str) -> None:
    described = MARKED | {"query_length": 24, "document_length": 30, "model_type": "ColBERT"}
    write_pylate(tmp_path, encoder, described, **BESIDE_PYLATE[beside])
    assert_reads_as_the_oracle(tmp_path)


EXPANDED = {"query_expansion": {"strategy": "fixed", "length": 16}}
NATIVE: dict[str, tuple[dict[str, Any] | None, dict[str, Any]]] = {
    "nothing said": ({}, {}),
    "no mask": (None, {"query_length": 20}),
    "fixed": ({"skiplist_words": [","]}, EXPANDED),
    "fixed under a longer query": ({}, EXPANDED | {"query_length": 30}),
    "fixed over the limit": ({}, {"query_expansion": {"strategy": "fixed", "length": 100}, "max_seq_length": 50}),
    "attended": ({}, {"query_expansion": {"strategy": "fixed", "length": 9, "attend": True, "token": "w7"}}),
    "min": ({}, {"query_expansion": {"strategy": "min", "length": 16}}),
    "min with a ceiling": ({}, {"query_expansion": {"strategy": "min", "length": 16}, "query_length": 22}),
    "min with a ceiling of every call": (
        {},
        {"query_expansion": {"strategy": "min", "length": 16}, "processing_kwargs": {"text": {"max_length": 19}}},
    ),
    "skipped in both": ({"skiplist_words": [",", "?"], "skiplist_tasks": ["query", "document"]}, EXPANDED),
    "skipped in queries": ({"skiplist_words": ["."], "skiplist_tasks": "query"}, {}),
    "skipped in neither": ({"skiplist_words": ["."], "skiplist_tasks": []}, {}),
    "an empty list of ids to keep": ({"keep_only_token_ids": []}, {}),
    "lengths": ({}, {"query_length": 10, "document_length": 600}),
}


UNIT_BY_TURNS = [
    pytest.param(files, unit, id=f"{files}-{'unit' if unit else 'raw'} rows", marks=pytest.mark.slow if skipped else ())
    for place, files in enumerate(NATIVE)
    for unit, skipped in ((True, place % 2), (False, place % 2 == 0))
]
"""Unit rows and raw ones in turns; both of each by `make test-slow`."""


@pytest.mark.parametrize(("files", "unit"), UNIT_BY_TURNS)
def test_keys_of_version_6(encoder: Path, tmp_path: Path, files: str, unit: bool) -> None:
    """Beside the Transformer and in the MultiVectorMask; unit length is what a Normalize says."""
    mask, beside = NATIVE[files]
    assert_reads_as_the_oracle(write_native(tmp_path, encoder, mask, unit, **beside))


STANFORD: dict[str, dict[str, Any] | None] = {
    "no file": None,
    "an empty file": {},
    "as Stanford writes it": {"query_token_id": "[unused0]", "doc_token_id": "[unused1]", "query_maxlen": 32}
    | {"doc_maxlen": 110, "dim": 48, "mask_punctuation": True, "attend_to_mask_tokens": False},
    "other markers": {"query_token_id": "[S]", "doc_token_id": "[X]", "query_maxlen": 24},
    "attended": {"attend_to_mask_tokens": True, "mask_punctuation": False},
    "null": {"query_token_id": None, "query_maxlen": None, "doc_maxlen": None},
}


@pytest.mark.parametrize("files", STANFORD)
def test_keys_of_stanford(encoder: Path, tmp_path: Path, files: str) -> None:
    """artifact.metadata, and what holds without it; prompts of other forms do not count."""
    write_stanford(tmp_path, encoder, STANFORD[files])
    write_json(tmp_path, **{PYLATE: {"prompts": {"query": "w5 "}}})
    model = assert_reads_as_the_oracle(tmp_path)
    if files != "other markers":
        assert [len(each) for each in ids_of(model, [card_of(model).prompts["query"] + "w1"])] == [4]


@pytest.mark.parametrize("described", [{}, MARKED | {"do_query_expansion": False}], ids=["nothing", "keys of PyLate"])
def test_modules_around_a_encoder_of_stanford(encoder: Path, tmp_path: Path, described: dict[str, Any]) -> None:
    """Without a model_type, config.json tells that it is a late-interaction model; modules.json says the rest."""
    write_native(tmp_path, encoder, *NATIVE["skipped in both" if not described else "lengths"])
    config = json.loads((tmp_path / "config.json").read_text()) | {"architectures": ["HF_ColBERT"]}
    write_json(tmp_path, **{"config": config, PYLATE: described})
    assert_reads_as_the_oracle(tmp_path)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, None),
        ({"pool_factor": 1, "normalize_embeddings": True}, None),
        ({"pool_factor": 2}, TokenPooling(pool_factor=2, normalize=False)),
        (
            {"pool_factor": 1.5, "num_protected_tokens": 0, "normalize_embeddings": True, "tasks": ["document"]},
            TokenPooling(pool_factor=1.5, protected_tokens=0),
        ),
    ],
    ids=["nothing", "a factor of 1", "as it was saved once", "everything"],
)
def test_a_module_that_pools_documents(
    encoder: Path, tmp_path: Path, config: dict[str, Any], expected: TokenPooling | None
) -> None:
    """It is on the card, with the defaults that the reference loads it with, and in the fingerprint."""
    folder = write_native(tmp_path, encoder, {})
    before = card_of(load(str(folder), CPU))
    card = card_of(load(str(write_pooled(folder, config)), CPU))
    assert (before.token_pooling, card.token_pooling) == (None, expected)
    assert card.fingerprint != before.fingerprint
    pooling = MultiVectorEncoder(str(folder), device="cpu")[-1]
    usual = TokenPooling(pool_factor=1, normalize=False) if expected is None and not config else expected
    if usual is not None:
        theirs = (pooling.pool_factor, pooling.num_protected_tokens, pooling.normalize_embeddings)
        assert theirs == (usual.pool_factor, usual.protected_tokens, usual.normalize)

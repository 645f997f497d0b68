"""--late-interaction goes over a model's files: each key changes its part of the card and the fingerprint alone."""

import json
import string
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpu_worker.model.card import card_of
from gpu_worker.model.loading import Model, load
from gpu_worker.model.source import LoadOptions
from gpu_worker.repository.late_interaction import KEYS
from gpu_worker.settings import WorkerSettings
from gpu_worker.worker import load_model
from shared.card import LateInteraction, ModelCard
from shared.errors import ModelRefused
from shared.vectors import QueryExpansion
from support.bge_m3 import write as write_bge_m3
from support.late_forms import write_native, write_pylate, write_stanford
from support.tiny import CPU, ids_of

pytestmark = pytest.mark.usefixtures("one_thread")
FILES = {"query_prefix": "[unused0] ", "document_prefix": "[unused1] ", "query_length": 24, "document_length": 40}
FIXED, MIN, NONE = QueryExpansion.FIXED, QueryExpansion.MIN, QueryExpansion.NONE


@pytest.fixture(scope="module")
def folder(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PyLate's: queries expanded to 24 tokens with the mask, punctuation skipped in documents."""
    described = FILES | {"model_type": "ColBERT"}
    return write_pylate(tmp_path_factory.mktemp("settings") / "model", encoder, described, max_seq_length=128)


Start = Callable[..., Model]


@pytest.fixture
def started(tmp_path: Path) -> Start:
    """Starts as a worker does, with a file of these settings if there are any."""

    def start(folder: Path, settings: Any = None, *arguments: str) -> Model:
        file = tmp_path / "late.json"
        file.write_text(json.dumps(settings))
        late = [] if settings is None else ["--late-interaction", str(file)]
        return load_model(WorkerSettings.read(["--model", str(folder), "--device", "cpu", *late, *arguments]))

    return start


def shown(model: Model) -> ModelCard:
    """Its card, but for the bytes that it takes."""
    return replace(card_of(model), weight_bytes=0)


def reading(card: ModelCard) -> LateInteraction:
    assert card.late_interaction is not None
    return card.late_interaction


@pytest.fixture(scope="module")
def card(folder: Path) -> ModelCard:
    return shown(load(str(folder), CPU))


CHANGED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a length over the limit": ({"document_length": 600}, {"document_length": 600}),
    "no expansion": (
        {"query_expansion": None},
        {"query_expansion": NONE, "query_length": 128, "expansion_length": 0, "expansion_id": 0},
    ),
    "no expansion, and a query's length": (
        {"query_expansion": None, "query_length": 20},
        {"query_expansion": NONE, "query_length": 20, "expansion_length": 0, "expansion_id": 0},
    ),
    "at least": ({"query_expansion": {"strategy": "min"}}, {"query_expansion": MIN, "query_length": 128}),
    "at least and at most": (
        {"query_expansion": {"strategy": "min", "length": 8}, "query_length": 12},
        {"query_expansion": MIN, "query_length": 12, "expansion_length": 8},
    ),
    "another length and token, attended": (
        {"query_expansion": {"length": 50, "token": "[SEP]", "attend": True}},
        {"query_length": 50, "expansion_length": 50, "expansion_id": 3, "attend_to_expansion": True},
    ),
    "no skiplist": ({"skiplist_words": []}, {"skiplist": ()}),
    "tokens of queries": (
        {"skiplist_words": ["[SEP]", "[MASK]"], "skiplist_tasks": ["query"]},
        {"skiplist": (3, 4), "skip_in_queries": True, "skip_in_documents": False},
    ),
    "of both": ({"skiplist_tasks": ["query", "document"]}, {"skip_in_queries": True}),
}


@pytest.mark.parametrize("changed", CHANGED)
def test_a_key_changes_its_part_of_the_card(folder: Path, card: ModelCard, started: Start, changed: str) -> None:
    settings, expected = CHANGED[changed]
    made = shown(started(folder, settings))
    assert made.fingerprint != card.fingerprint
    late = replace(reading(card), **expected)
    assert made == replace(card, late_interaction=late, fingerprint=made.fingerprint)


def test_the_score_may_be_a_mean(folder: Path, card: ModelCard, started: Start) -> None:
    made = shown(started(folder, {"similarity_fn_name": "meanmaxsim"}))
    assert made == replace(card, averages_late_interaction=True, fingerprint=made.fingerprint)
    assert made.fingerprint != card.fingerprint


@pytest.mark.parametrize(("marker", "tokens"), [("[S] ", 1), ("[X] ", 3), ("", 0)])
def test_a_marker_is_a_prompt_of_whole_tokens(
    folder: Path, card: ModelCard, started: Start, marker: str, tokens: int
) -> None:
    """One that the vocabulary has is one token, another is text, an empty one is nothing."""
    model = started(folder, {"query_prefix": marker, "document_prefix": marker})
    made = shown(model)
    assert made.fingerprint != card.fingerprint
    assert made.prompts == card.prompts | {"query": marker, "document": marker}
    assert reading(made) == reading(card)
    assert len(ids_of(model, [f"{marker}w1"])[0]) == tokens + 3


def test_a_key_that_says_what_the_files_say_changes_nothing(folder: Path, card: ModelCard, started: Start) -> None:
    assert shown(started(folder, {})) == card
    expansion = {"strategy": "fixed", "length": 24, "token": "[MASK]", "attend": False}
    skipped = {"skiplist_words": list(string.punctuation), "skiplist_tasks": ["document"]}
    settings = FILES | skipped | {"query_expansion": expansion, "similarity_fn_name": "maxsim"}
    assert set(settings) == set(KEYS)
    assert shown(started(folder, settings)) == card


def test_files_without_a_marker_or_an_expansion_get_them(encoder: Path, tmp_path: Path, started: Start) -> None:
    """The marker takes the place of a prompt."""
    folder = write_native(tmp_path / "model", encoder, {}, document_length=50)
    assert shown(started(folder)).prompts == {"query": "w1 ", "document": ""}
    expansion = {"strategy": "fixed", "length": 32}
    made = shown(started(folder, {"query_prefix": "w2 ", "query_expansion": expansion}))
    assert made.prompts == {"query": "w2 ", "document": ""}
    late = reading(made)
    assert (late.query_length, late.expansion_length, late.expansion_id) == (32, 32, 4)
    assert not late.attend_to_expansion


def test_the_longest_text_bounds_both_sides(folder: Path, started: Start) -> None:
    model = started(folder, None, "--max-tokens", "30")
    late = model.late_interaction
    assert late is not None
    assert (model.max_tokens, late.query_length, late.document_length, model.longest) == (30, 24, 30, 30)
    assert started(folder, {"document_length": 600}).longest == 600
    long = started(folder, {"query_expansion": {"strategy": "min", "length": 200}})
    assert long.late_interaction is not None
    assert (long.max_tokens, long.late_interaction.query_length, long.longest) == (128, 200, 200)


NONSENSE: dict[str, tuple[Any, list[str]]] = {
    "no object": ([], ["late.json must hold a JSON object"]),
    "an unknown key": ({"query_len": 9}, ["late.json has query_len", "none of query_prefix, "]),
    "an unknown key of the expansion": (
        {"query_expansion": {"attended": True}},
        ["late.json: query_expansion has attended"],
    ),
    "a marker that is a number": ({"query_prefix": 1}, ["late.json: query_prefix 1 must be a text"]),
    "an unknown task": ({"skiplist_tasks": ["both"]}, ["skiplist_tasks both is not one of query, document"]),
    "an unknown score": ({"similarity_fn_name": "max"}, ["late.json: similarity_fn_name max", "maxsim, meanmaxsim"]),
    "a query above its fixed expansion": (
        {"query_length": 30},
        ["late.json: query_length 30", "exactly 24", "length of query_expansion"],
    ),
    "a query over the positions": (
        {"query_expansion": None, "query_length": 641},
        ["late.json: query_length 641", "640 positions"],
    ),
    "a document over the positions": ({"document_length": 641}, ["late.json: document_length 641", "640 positions"]),
    "a skiplist of no vocabulary": (
        {"skiplist_words": ["[SEP]", "nothing"]},
        ["late.json: skiplist_words", "no token 'nothing'"],
    ),
    "sides of no skiplist": (
        {"skiplist_words": [], "skiplist_tasks": ["query"]},
        ["late.json: skiplist_tasks", "no skiplist", "see skiplist_words"],
    ),
}


def refusal(start: Callable[[], object]) -> str:
    """The refusal of a start, in one line."""
    with pytest.raises(ModelRefused) as raised:
        start()
    said = str(raised.value)
    assert "\n" not in said
    return said


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_what_makes_no_sense_is_refused_by_file_and_key(folder: Path, started: Start, nonsense: str) -> None:
    """The function that refuses values of the model's own files refuses those of this one."""
    settings, named = NONSENSE[nonsense]
    said = refusal(lambda: started(folder, settings))
    assert [part for part in named if part not in said] == [], said


def test_the_longest_text_refuses_what_is_longer(folder: Path, started: Start) -> None:
    said = refusal(lambda: started(folder, {"document_length": 50}, "--max-tokens", "40"))
    assert "late.json: document_length 50: --max-tokens is 40" in said
    said = refusal(lambda: started(folder, None, "--max-tokens", "20"))
    assert "query_length: queries are expanded to 24 tokens, and --max-tokens is 20" in said


def test_punctuation_that_a_vocabulary_lacks_is_not_skipped(encoder: Path, tmp_path: Path, started: Start) -> None:
    """The list of PyLate can be written down for any model."""
    folder = write_stanford(tmp_path / "model", encoder, {"mask_punctuation": False})
    reader = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = reader["model"]["vocab"]
    vocabulary["tilde"] = vocabulary.pop("~")
    (folder / "tokenizer.json").write_text(json.dumps(reader))
    known = reading(shown(started(folder, {"skiplist_words": list(string.punctuation)}))).skiplist
    assert len(known) == len(string.punctuation) - 1


def test_a_model_of_another_kind_refuses_the_file(encoder: Path, tmp_path: Path, started: Start) -> None:
    write_bge_m3(tmp_path / "bge")
    for folder in (encoder, tmp_path / "bge"):
        said = refusal(partial(started, folder, {}))
        assert said == f"--late-interaction {tmp_path / 'late.json'}: the model is no late-interaction model"


def test_a_file_that_is_missing_is_refused(folder: Path) -> None:
    with pytest.raises(ModelRefused, match=r"nowhere\.json is missing"):
        load(str(folder), CPU, LoadOptions(late=Path("nowhere.json")))


def test_the_description_names_every_key() -> None:
    described = WorkerSettings.model_fields["late_interaction"].description
    assert described is not None
    assert [key for key in KEYS if key not in described] == []

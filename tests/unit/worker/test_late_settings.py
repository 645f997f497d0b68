"""Settings of late interaction go over the files: each changes the card and the fingerprint, and nothing else does."""

import string
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from gpu_worker.model.card import card_of
from gpu_worker.model.loading import Model, load
from gpu_worker.repository.late_overrides import LateOverrides
from gpu_worker.settings import WorkerSettings
from gpu_worker.worker import load_model
from shared.card import LateInteraction, ModelCard
from shared.errors import ModelRefused
from shared.vectors import QueryExpansion
from support.late_forms import write_native, write_pylate
from support.random_models import random_model
from support.tiny import CPU, ids_of

pytestmark = pytest.mark.usefixtures("one_thread")
FILES = {"query_prefix": "[unused0] ", "document_prefix": "[unused1] ", "query_length": 24, "document_length": 40}
FIXED, MIN, NONE = QueryExpansion.FIXED, QueryExpansion.MIN, QueryExpansion.NONE


@pytest.fixture(scope="module")
def folder(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PyLate's: queries expanded to 24 tokens with the mask, punctuation skipped in documents."""
    described = FILES | {"model_type": "ColBERT"}
    return write_pylate(tmp_path_factory.mktemp("settings") / "model", encoder, described, max_seq_length=128)


def started(folder: Path | str, *arguments: str) -> Model:
    """As a worker is started."""
    return load_model(WorkerSettings.read(["--model", str(folder), "--device", "cpu", *arguments]))


def shown(model: Model) -> ModelCard:
    """Its card, but for the bytes that it takes."""
    return replace(card_of(model), weight_bytes=0)


def reading(card: ModelCard) -> LateInteraction:
    assert card.late_interaction is not None
    return card.late_interaction


@pytest.fixture(scope="module")
def card(folder: Path) -> ModelCard:
    return shown(started(folder))


CHANGED: dict[str, tuple[list[str], dict[str, Any]]] = {
    "a document's length": (["--document-length", "60"], {"document_length": 60}),
    "a length over the limit": (["--document-length", "600"], {"document_length": 600}),
    "no expansion": (
        ["--query-expansion", "none"],
        {"query_expansion": NONE, "query_length": 128, "expansion_length": 0, "expansion_id": 0},
    ),
    "no expansion, and a query's length": (
        ["--query-expansion", "none", "--query-length", "20"],
        {"query_expansion": NONE, "query_length": 20, "expansion_length": 0, "expansion_id": 0},
    ),
    "at least": (["--query-expansion", "min"], {"query_expansion": MIN, "query_length": 128}),
    "at least and at most": (
        ["--query-expansion", "min", "--expansion-length", "8", "--query-length", "12"],
        {"query_expansion": MIN, "query_length": 12, "expansion_length": 8},
    ),
    "another length": (["--expansion-length", "50"], {"query_length": 50, "expansion_length": 50}),
    "another token": (["--expansion-token", "[SEP]"], {"expansion_id": 3}),
    "attended": (["--attend-to-expansion", "yes"], {"attend_to_expansion": True}),
    "no skiplist": (["--skiplist", "none"], {"skiplist": ()}),
    "tokens": (["--skiplist", "[SEP] [MASK]"], {"skiplist": (3, 4)}),
    "of queries": (["--skiplist-for", "queries"], {"skip_in_queries": True, "skip_in_documents": False}),
    "of both": (["--skiplist-for", "both"], {"skip_in_queries": True}),
}


@pytest.mark.parametrize("changed", CHANGED)
def test_a_setting_changes_its_part_of_the_card(folder: Path, card: ModelCard, changed: str) -> None:
    """And the fingerprint; the rest stays."""
    arguments, expected = CHANGED[changed]
    made = shown(started(folder, *arguments))
    assert made.fingerprint != card.fingerprint
    late = replace(reading(card), **expected)
    assert made == replace(card, late_interaction=late, fingerprint=made.fingerprint)


def test_the_score_may_be_a_mean(folder: Path, card: ModelCard) -> None:
    made = shown(started(folder, "--late-scores", "mean"))
    assert made == replace(card, averages_late_interaction=True, fingerprint=made.fingerprint)
    assert made.fingerprint != card.fingerprint


@pytest.mark.parametrize("side", ["query", "document"])
@pytest.mark.parametrize(("marker", "tokens"), [("[S] ", 1), ("[X] ", 3), ("", 0)])
def test_a_marker_is_a_prompt_of_whole_tokens(
    folder: Path, card: ModelCard, side: str, marker: str, tokens: int
) -> None:
    """One that the vocabulary has is one token, another is text, an empty one is nothing."""
    model = started(folder, f"--{side}-marker={marker}")
    made = shown(model)
    assert made.fingerprint != card.fingerprint
    assert made.prompts == card.prompts | {side: marker}
    assert reading(made) == reading(card)
    assert len(ids_of(model, [made.prompts[side] + "w1"])[0]) == tokens + 3


SAME = [
    ["--query-marker", "[unused0] "],
    ["--query-length", "24"],
    ["--document-length", "40"],
    ["--query-expansion", "fixed"],
    ["--expansion-length", "24"],
    ["--expansion-token", "[MASK]"],
    ["--attend-to-expansion", "no"],
    ["--skiplist", "punctuation"],
    ["--skiplist", " ".join(string.punctuation)],
    ["--skiplist-for", "documents"],
    ["--late-scores", "sum"],
    ["--query-length", "0", "--skiplist", "files"],
]


@pytest.mark.parametrize("arguments", SAME, ids=" ".join)
def test_a_setting_that_says_what_the_files_say_changes_nothing(
    folder: Path, card: ModelCard, arguments: list[str]
) -> None:
    assert shown(started(folder, *arguments)) == card


def test_files_without_expansion_get_one_of_32_tokens(encoder: Path, tmp_path: Path) -> None:
    """With the mask token, unattended; a query's length in the files is the length of its expansion."""
    write_native(tmp_path, encoder, {}, document_length=50)
    late = reading(shown(started(tmp_path, "--query-expansion", "fixed")))
    assert (late.query_length, late.expansion_length, late.expansion_id) == (32, 32, 4)
    assert not late.attend_to_expansion
    write_native(tmp_path, encoder, {}, query_length=20)
    assert reading(shown(started(tmp_path, "--query-expansion", "min"))).expansion_length == 20


def test_the_longest_text_bounds_both_sides(folder: Path) -> None:
    """What --max-tokens says goes over the files."""
    model = started(folder, "--max-tokens", "30")
    late = model.late_interaction
    assert late is not None
    assert (model.max_tokens, late.query_length, late.document_length, model.longest) == (30, 24, 30, 30)
    assert started(folder, "--document-length", "600").longest == 600
    long = started(folder, "--query-expansion", "min", "--expansion-length", "200")
    assert long.late_interaction is not None
    assert (long.max_tokens, long.late_interaction.query_length, long.longest) == (128, 200, 200)


NONSENSE: dict[str, tuple[list[str], list[str]]] = {
    "a query below its expansion": (["--query-length", "20"], ["--query-length = 20", "exactly 24", "--expansion-"]),
    "a query above its fixed expansion": (["--query-length", "30"], ["--query-length = 30", "exactly 24"]),
    "a query below its least": (
        ["--query-expansion", "min", "--query-length", "20"],
        ["--query-length = 20", "at least 24"],
    ),
    "a query over the positions": (
        ["--query-expansion", "none", "--query-length", "641"],
        ["--query-length = 641", "640 positions"],
    ),
    "a document over the positions": (["--document-length", "641"], ["--document-length = 641", "640 positions"]),
    "a document over the longest text": (
        ["--document-length", "50", "--max-tokens", "40"],
        ["--document-length = 50", "--max-tokens is 40"],
    ),
    "an expansion over the longest text": (["--max-tokens", "20"], ["query_length", "24 tokens", "--max-tokens is 20"]),
    "an expansion over the positions": (["--expansion-length", "641"], ["--expansion-length = 641", "640 positions"]),
    "a length of no expansion": (
        ["--query-expansion", "none", "--expansion-length", "8"],
        ["--expansion-length = 8", "not expanded", "--query-expansion"],
    ),
    "a token of no expansion": (
        ["--query-expansion", "none", "--expansion-token", "w1"],
        ["--expansion-token = 'w1'", "not expanded"],
    ),
    "attention to no expansion": (
        ["--query-expansion", "none", "--attend-to-expansion", "yes"],
        ["--attend-to-expansion = 'yes'", "not expanded"],
    ),
    "a token of no vocabulary": (["--expansion-token", "nothing"], ["--expansion-token = 'nothing'", "vocabulary"]),
    "a skiplist of no vocabulary": (["--skiplist", "[SEP] nothing"], ["--skiplist", "no token 'nothing'"]),
    "sides of no skiplist": (
        ["--skiplist", "none", "--skiplist-for", "both"],
        ["--skiplist-for = 'both'", "no skiplist", "--skiplist"],
    ),
}


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_what_makes_no_sense_is_refused_by_its_setting(folder: Path, nonsense: str) -> None:
    """In one line."""
    arguments, named = NONSENSE[nonsense]
    with pytest.raises(ModelRefused) as raised:
        started(folder, *arguments)
    said = str(raised.value)
    assert "\n" not in said
    assert [part for part in named if part not in said] == [], said


def test_an_expansion_longer_than_the_files_let_queries_be(encoder: Path, tmp_path: Path) -> None:
    """As sentence-transformers refuses it."""
    write_native(tmp_path, encoder, {}, query_length=20)
    with pytest.raises(ModelRefused, match=r"--expansion-length = 32: queries have at most 20 tokens, see --query-len"):
        started(tmp_path, "--query-expansion", "fixed", "--expansion-length", "32")


SET: dict[str, Any] = {
    "query_marker": "",
    "document_marker": "d",
    "query_length": 9,
    "document_length": 9,
    "query_expansion": "none",
    "expansion_length": 9,
    "expansion_token": "x",
    "attend_to_expansion": "no",
    "skiplist": "none",
    "skiplist_for": "both",
    "late_scores": "sum",
}


@pytest.mark.parametrize("name", [each.name for each in fields(LateOverrides)])
def test_a_model_of_another_kind_refuses_every_setting(name: str) -> None:
    """BGE-M3 too, whose token vectors have no sides."""
    flag = "--" + name.replace("_", "-")
    for model in (random_model("tiny"), random_model("tiny-bge-m3")):
        with pytest.raises(ModelRefused, match=f"^{flag}: the model is no late-interaction model$"):
            load(model, CPU, late=LateOverrides(**{name: SET[name]}))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--query-length", "-1"],
        ["--expansion-length", "many"],
        ["--query-expansion", "max"],
        ["--attend-to-expansion", "true"],
        ["--skiplist-for", "both sides"],
        ["--skiplist", " "],
        ["--late-scores", "max"],
    ],
)
def test_a_bad_value_stops_the_start(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Naming key and value."""
    with pytest.raises(SystemExit) as raised:
        WorkerSettings.read(arguments)
    assert raised.value.code == 2
    said = capsys.readouterr().err
    assert arguments[0] in said
    assert arguments[1] in said


def test_settings_come_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the spaces that they end in."""
    monkeypatch.setenv("SELVAGE_WORKER_QUERY_MARKER", "[Q] ")
    monkeypatch.setenv("SELVAGE_WORKER_SKIPLIST", "[ ] ,")
    assert WorkerSettings.read([]).late_overrides() == LateOverrides(query_marker="[Q] ", skiplist="[ ] ,")

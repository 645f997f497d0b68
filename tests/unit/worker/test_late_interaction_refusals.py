"""Late-interaction files that make no sense are refused at load: in one line, with the file and the key at fault."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import MultiVectorEncoder

from gpu_worker.model.loading import load
from support.breakages import refusal
from support.late_forms import PYLATE, write_native, write_pooled, write_pylate, write_reader, write_stanford
from support.tiny import CPU, write_encoder, write_json

pytestmark = pytest.mark.usefixtures("one_thread")
MARKED = {"query_prefix": "[Q] ", "document_prefix": "[D] "}
EXPANDED = {"query_expansion": {"strategy": "fixed", "length": 16}}
Change = Callable[[Path, Path], object]


def native(mask: dict[str, Any] | None = None, **beside: Any) -> Change:
    return lambda folder, encoder: write_native(folder, encoder, {} if mask is None else mask, **beside)


def pylate(**described: Any) -> Change:
    return lambda folder, encoder: write_pylate(folder, encoder, MARKED | {"model_type": "ColBERT"} | described)


def stanford(**metadata: Any) -> Change:
    return lambda folder, encoder: write_stanford(folder, encoder, metadata)


def expansion(**values: Any) -> Change:
    return native(query_expansion={"strategy": "fixed", "length": 16} | values)


def without_mask(folder: Path, encoder: Path) -> None:
    write_native(folder, encoder, None, **EXPANDED)


def padded_left(folder: Path, encoder: Path) -> None:
    write_native(folder, encoder, {}, **EXPANDED)
    write_reader(folder, padding_side="left")


def without_filler(folder: Path, encoder: Path) -> None:
    write_native(folder, encoder, {}, **EXPANDED)
    write_reader(folder, mask_token=None)


def pooled(unit: bool = True, behind: str = "", **config: Any) -> Change:
    """A module that pools token vectors, and after it one of the folder `behind`, if that is given."""

    def change(folder: Path, encoder: Path) -> None:
        write_pooled(write_native(folder, encoder, {}, unit=unit), config, behind)

    return change


def padding_token(folder: Path, encoder: Path) -> None:
    write_encoder(folder / "roberta", "tiny-roberta")
    write_native(folder, folder / "roberta", {}, query_expansion={"strategy": "fixed", "length": 16, "token": "[UNK]"})


def two_masks(folder: Path, encoder: Path) -> None:
    write_native(folder, encoder, {"skiplist_words": ["w1"], "skiplist_tasks": ["query"]})
    write_json(folder, **{PYLATE: {"model_type": "ColBERT", "do_query_expansion": False}})


BESIDE_FILE, PYLATE_FILE, META = "sentence_bert_config.json", f"{PYLATE}.json", "artifact.metadata"
POOLING = "4_HierarchicalTokenPooling/config.json"
EXPANSION = [BESIDE_FILE, "query_expansion"]
REFUSED: dict[str, tuple[Change, list[str], bool]] = {
    "an unknown key": (expansion(tokens="w1"), [*EXPANSION, "tokens"], True),
    "an unknown strategy": (expansion(strategy="max"), [*EXPANSION, "strategy max"], True),
    "an expansion that is a word": (native(query_expansion="fixed"), EXPANSION, True),
    "no length": (expansion(length=None), [*EXPANSION, "length"], True),
    "a length of nothing": (expansion(length=0), [*EXPANSION, "length 0"], True),
    "attention that is a number": (expansion(attend=1), [*EXPANSION, "attend 1"], True),
    "a token of no vocabulary": (expansion(token="nothing"), [*EXPANSION, "'nothing'"], True),
    "a query below its expansion": (
        native(**EXPANDED, query_length=8),
        [BESIDE_FILE, "query_length 8", "query_expansion, 16"],
        True,
    ),
    "an expansion over the positions": (expansion(length=641), [*EXPANSION, "641", "640 positions"], False),
    "an expansion with the padding token": (padding_token, [*EXPANSION, "padding token 1"], False),
    "an expansion at the beginning": (padded_left, [*EXPANSION, "padding_side"], False),
    "an expansion with nothing": (without_filler, [*EXPANSION, "no mask or end token"], True),
    "an expansion that is not scored": (without_mask, [*EXPANSION, "MultiVectorMask"], False),
    "a mask for images": (native({"keep_only_token_ids": [7]}), ["2_MultiVectorMask/config.json", "keep_only"], False),
    "two masks that differ": (two_masks, ["modules.json", "MultiVectorMask"], False),
    "pooled queries": (pooled(tasks=["query", "document"]), [POOLING, "tasks", "documents"], False),
    "a factor below 1": (pooled(pool_factor=0.5), [POOLING, "pool_factor 0.5"], True),
    "a factor that is a text": (pooled(pool_factor="2"), [POOLING, "pool_factor '2'"], True),
    "less than no protected tokens": (pooled(num_protected_tokens=-1), [POOLING, "num_protected_tokens -1"], True),
    "an unknown key of pooling": (pooled(factor=2), [POOLING, "has factor"], True),
    "pooled rows of no unit length": (pooled(unit=False), ["modules.json", "needs a Normalize"], False),
    "a module behind the pooling": (pooled(behind="3_Normalize"), ["modules.json", "Normalize behind"], False),
    "a strategy that is a list": (expansion(strategy=["min"]), [*EXPANSION, "strategy ['min'] is not one of"], False),
    "a length that is a text": (native(document_length="many"), [BESIDE_FILE, "document_length 'many'"], False),
    "a skiplist that is a word": (pylate(skiplist_words="abc"), [PYLATE_FILE, "skiplist_words"], False),
    "a prefix that is a number": (pylate(query_prefix=5), [PYLATE_FILE, "query_prefix 5"], True),
    "PyLate's length as a text": (pylate(query_length="many"), [PYLATE_FILE, "query_length", "'many'"], True),
    "Stanford's length as a text": (stanford(query_maxlen="many"), [META, "query_maxlen 'many'"], True),
    "Stanford's marker as a number": (stanford(doc_token_id=5), [META, "doc_token_id 5"], True),
}


@pytest.mark.parametrize("broken", REFUSED)
def test_what_makes_no_sense_is_refused_by_file_and_key(encoder: Path, tmp_path: Path, broken: str) -> None:
    """In one line; and what the oracle refuses as well is marked so."""
    change, named, by_the_oracle = REFUSED[broken]
    change(tmp_path, encoder)
    said = refusal(tmp_path)
    assert [part for part in named if part not in said] == [], said
    if by_the_oracle:
        with pytest.raises((ValueError, TypeError, AttributeError)):
            MultiVectorEncoder(str(tmp_path), device="cpu")


def test_a_dense_model_with_keys_of_late_interaction_is_refused(encoder: Path, tmp_path: Path) -> None:
    """sentence-transformers would cut its queries elsewhere."""
    write_native(tmp_path, encoder, None, query_length=20)
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    write_json(tmp_path, **{PYLATE: {"model_type": "SentenceTransformer"}, "modules": modules})
    assert "sentence_bert_config.json: query_length is for models of late" in refusal(tmp_path)


def test_an_unattended_expansion_beyond_the_window_is_refused(tmp_path: Path) -> None:
    """Its last tokens would see nothing; one that is attended to sees itself."""
    write_encoder(tmp_path / "encoder", "tiny-modernbert")
    for attend in (False, True):
        expansion = {"strategy": "fixed", "length": 12, "attend": attend}
        folder = write_native(tmp_path / str(attend), tmp_path / "encoder", {}, query_expansion=expansion)
        if attend:
            assert load(str(folder), CPU).late_interaction is not None
        else:
            assert "beyond the attention window of 8; see attend of query_expansion" in refusal(folder)

"""Late-interaction settings in a repository's files: lengths, query expansion, skiplist, markers.

There are three formats: sentence-transformers 6 (keys beside the Transformer, and a MultiVectorMask), PyLate (keys in
config_sentence_transformers.json) and Stanford ColBERT (artifact.metadata). They are read as
`sentence_transformers.MultiVectorEncoder` 6.2 reads them. Each is translated into the same keys (`KEYS`), the file of
--late-interaction goes over them, and one function checks them all. This module reads JSON only and knows no tokenizer.
"""

import string
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path
from typing import Any

from gpu_worker.repository.files import check_keys, checked, one_of, read_object, texts, whole
from gpu_worker.repository.recipe import Entries, Expansion, LateInteractionRecipe, Recipe, Strategy
from gpu_worker.repository.text_settings import LATE, TextSettings
from shared.errors import ModelRefused
from shared.vectors import QueryExpansion

PUNCTUATION = tuple(string.punctuation)
CLASSIC_LENGTH = 32
"""Length in tokens to which a query is expanded where no file gives one."""
SIDES = {"query": "query_prefix", "document": "document_prefix"}
PYLATE_KEYS = (*SIDES.values(), "do_query_expansion", "attend_to_expansion_tokens", "skiplist_words")
"""Keys that only PyLate writes; before version 5 of sentence-transformers it wrote no model_type."""
ATTEND = ("attend_to_expansion_tokens", "attend_to_mask_tokens")
EXPANSION_KEYS = ("attend", "length", "strategy", "token")
STRATEGIES: dict[str, Strategy] = {"fixed": QueryExpansion.FIXED, "min": QueryExpansion.MIN}
TASKS = ("query", "document")
MEAN = "meanmaxsim"
SCORES = ("maxsim", MEAN)


class LateInteractionFormat(Enum):
    """The library that wrote modules.json; PyLate's models are masked and normalised without saying so."""

    NATIVE = auto()
    PYLATE = auto()
    OLD_PYLATE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskToken:
    """A MultiVectorMask: tokens that get no vector, in texts of its tasks."""

    words: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ("document",)


def format_of(described: dict[str, Any], config: Path, pylate: bool) -> LateInteractionFormat | None:
    """Finds the format of the files of a late-interaction model; None for other models.

    `config` is the path of config.json; `pylate`: one of the modules is PyLate's.
    """
    kind = described.get("model_type")
    if kind == "ColBERT":
        return LateInteractionFormat.PYLATE
    if kind == "MultiVectorEncoder" or (kind is None and is_stanford(read_object(config, missing={}))):
        return LateInteractionFormat.NATIVE
    if kind is None and (pylate or any(key in described for key in PYLATE_KEYS)):
        return LateInteractionFormat.OLD_PYLATE
    return None


def is_stanford(config: dict[str, Any]) -> bool:
    """Whether config.json names the class of Stanford ColBERT."""
    return "HF_ColBERT" in (config.get("architectures") or ())


def of_modules(
    file_format: LateInteractionFormat,
    file: Path,
    described: dict[str, Any],
    settings: TextSettings,
    masks: list[MaskToken],
) -> LateInteractionRecipe:
    """Reads the settings of a model with modules.json. Raises ModelRefused.

    `described` is the content of `file`; keys beside the Transformer (`settings`) override it.
    """
    if settings.whole:
        why = "processing_kwargs keeps texts whole, which is not supported for a model of late interaction"
        raise ModelRefused(f"{settings.named}: {why}: its texts are cut to a length of their own")
    entries = _of_pylate(file, described)
    entries |= {key: (value, f"{settings.named}: {key}") for key, value in settings.late.items()}
    entries |= {key: (described[key], f"{file}: {key}") for key in SIDES.values() if key in described}
    masks = [*masks, *_added_mask(file_format, file, described)]
    entries |= _skiplist(file.parent / "modules.json", masks)
    expansion = _recipe(entries).expansion
    if expansion and not masks:
        raise ModelRefused(f"{expansion.source} needs a MultiVectorMask in modules.json, which scores the expansion")
    if settings.call_limit:  # an argument of every call, so it overrides the lengths of both sides
        limit = (settings.call_limit, f"{settings.named}: max_length of processing_kwargs")
        entries["document_length"] = limit
        if expansion is None or expansion.strategy is QueryExpansion.MIN:
            entries["query_length"] = limit
    return _recipe(entries, settings.padding_side)


def of_stanford(file: Path) -> LateInteractionRecipe:
    """Reads the settings of a Stanford ColBERT; `file` is artifact.metadata, if there is one. Raises ModelRefused."""
    metadata = read_object(file, missing={})
    entries: Entries = {}
    for key, colbert_key, default in (
        ("query_prefix", "query_token_id", "[unused0]"),
        ("document_prefix", "doc_token_id", "[unused1]"),
    ):
        marker = default if metadata.get(colbert_key) in (None, "") else metadata[colbert_key]
        entries[key] = (checked(marker, str, f"{file}: {colbert_key}") + " ", f"{file}: {colbert_key}")
    length = whole(metadata.get("query_maxlen") or CLASSIC_LENGTH, f"{file}: query_maxlen")
    expansion = {"strategy": "fixed", "attend": bool(metadata.get("attend_to_mask_tokens")), "length": length}
    skiplist = list(PUNCTUATION) if metadata.get("mask_punctuation", True) else []
    entries["query_expansion"] = (expansion, f"{file}: query_maxlen")
    entries["document_length"] = (metadata.get("doc_maxlen"), f"{file}: doc_maxlen")
    entries["skiplist_words"] = (skiplist, f"{file}: mask_punctuation")
    return _recipe(entries)


def overridden(recipe: Recipe, file: Path) -> Recipe:
    """Merges the file of --late-interaction over what the model's files say. Raises ModelRefused, naming file and key.

    Keys of query_expansion go over the files' one by one. A prefix replaces the files' marker and prompt.
    """
    late, vectors = recipe.late_interaction, recipe.multi_vector
    if late is None or vectors is None:
        raise ModelRefused(f"--late-interaction {file}: the model is no late-interaction model")
    settings = read_object(file)
    check_keys(settings, KEYS, file, f"which is none of {', '.join(KEYS)}")
    entries = late.entries | {key: (value, f"{file}: {key}") for key, value in settings.items()}
    expansion, files_expansion = settings.get("query_expansion"), late.entries.get("query_expansion", (None,))[0]
    if isinstance(expansion, dict) and files_expansion:
        entries["query_expansion"] = (files_expansion | expansion, f"{file}: query_expansion")
    merged = replace(_recipe(entries, late.padding_side), overridden=frozenset(settings))
    exact = merged.expansion if merged.expansion and merged.expansion.strategy is QueryExpansion.FIXED else None
    if exact and "query_length" in settings and merged.query_length not in (None, exact.length):
        why = f"queries are expanded to exactly {exact.length} tokens, see length of query_expansion"
        raise ModelRefused(f"{file}: query_length {merged.query_length}: {why}")
    if "skiplist_tasks" in settings and not merged.skiplist:
        raise ModelRefused(f"{file}: skiplist_tasks: there is no skiplist, see skiplist_words")
    if "similarity_fn_name" in settings:
        score = one_of(settings["similarity_fn_name"], SCORES, f"{file}: similarity_fn_name")
        vectors = replace(vectors, mean=score == MEAN)
    return replace(recipe, late_interaction=merged, multi_vector=vectors)


def mask_of(config: dict[str, Any], file: Path) -> MaskToken:
    """Reads the config of a MultiVectorMask, which is the content of `file`. Raises ModelRefused."""
    if config.get("keep_only_token_ids"):
        raise ModelRefused(f"{file}: keep_only_token_ids is for images, which are not served")
    tasks = config.get("skiplist_tasks")
    tasks = ["document"] if tasks is None else [tasks] if isinstance(tasks, str) else tasks
    words = config.get("skiplist_words")
    return MaskToken(
        words=() if words is None else texts(words, f"{file}: skiplist_words"),
        tasks=texts(tasks, f"{file}: skiplist_tasks"),
    )


def with_markers(prompts: dict[str, str], late: LateInteractionRecipe) -> dict[str, str]:
    """Puts markers before prompts. Queries and documents always get a prompt, so that neither falls back to another."""
    composed = dict.fromkeys(SIDES, "") | prompts
    for side, marker in late.markers.items():
        prompt = "" if SIDES[side] in late.overridden else composed[side]
        composed[side] = marker + prompt.removeprefix(marker)
    return composed


def _of_pylate(file: Path, described: dict[str, Any]) -> Entries:
    """Translates PyLate's lengths and expansion into the keys of sentence-transformers 6.

    PyLate expands queries to their longest length unless its files say otherwise.
    """
    entries = {key: (described[key], f"{file}: {key}") for key in LATE if described.get(key) is not None}
    marked = any(key in described for key in (*PYLATE_KEYS, *ATTEND, *LATE))
    if "query_expansion" in described or not marked or described.get("do_query_expansion") is False:
        return entries
    length, where = entries.pop("query_length", (CLASSIC_LENGTH, f"{file}: do_query_expansion"))
    attend = next((bool(described[key]) for key in ATTEND if key in described), False)
    return entries | {
        "query_expansion": ({"strategy": "fixed", "attend": attend, "length": length or CLASSIC_LENGTH}, where)
    }


def _added_mask(file_format: LateInteractionFormat, file: Path, described: dict[str, Any]) -> list[MaskToken]:
    """The mask that PyLate's models have without a module for it; by default it skips punctuation."""
    if file_format is LateInteractionFormat.NATIVE:
        return []
    words = described.get("skiplist_words")
    if words is not None:
        return [MaskToken(words=texts(words, f"{file}: skiplist_words"))]
    marked = any(key in described for key in SIDES.values())
    return [MaskToken(words=PUNCTUATION if file_format is LateInteractionFormat.PYLATE or marked else ())]


def _skiplist(file: Path, masks: list[MaskToken]) -> Entries:
    """Joins the tokens that all masks skip."""
    effective = [mask for mask in masks if mask.words] or masks or [MaskToken()]
    tasks = [task for task in TASKS if any(task in mask.tasks for mask in effective)]
    skipped = [{word for mask in effective if task in mask.tasks for word in mask.words} for task in tasks]
    if any(words != skipped[0] for words in skipped):
        raise ModelRefused(f"{file}: several MultiVectorMask skip other tokens of queries than of documents")
    words = sorted(skipped[0]) if skipped else []
    return {"skiplist_words": (words, str(file)), "skiplist_tasks": (tasks, str(file))}


def _expansion(value: Any, where: str) -> Expansion:
    check_keys(checked(value, dict, where), EXPANSION_KEYS, where, f"which is none of {', '.join(EXPANSION_KEYS)}")
    strategy = one_of(value.get("strategy"), STRATEGIES, f"{where}: strategy")
    if value.get("length") is None:
        raise ModelRefused(f"{where}: length is missing")
    return Expansion(
        strategy=STRATEGIES[strategy],
        length=whole(value["length"], f"{where}: length"),
        attend=checked(value.get("attend", False), bool, f"{where}: attend"),
        token=None if value.get("token") is None else checked(value["token"], str, f"{where}: token"),
        source=where,
    )


def _text(value: Any, where: str) -> str:
    return checked(value, str, where)


def _tasks(value: Any, where: str) -> tuple[str, ...]:
    return tuple(one_of(task, TASKS, where) for task in texts(value, where))


CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "query_prefix": _text,
    "document_prefix": _text,
    "query_length": whole,
    "document_length": whole,
    "query_expansion": _expansion,
    "skiplist_words": texts,
    "skiplist_tasks": _tasks,
}
KEYS = (*CHECKS, "similarity_fn_name")
"""Keys of the file of --late-interaction, as sentence-transformers 6 and PyLate write them."""


def _recipe(entries: Entries, padding_side: str | None = None) -> LateInteractionRecipe:
    """Checks the settings of a model. Raises ModelRefused, naming file and key."""
    entries = {"skiplist_tasks": (["document"], ""), **entries}
    values = {
        key: check(*entries[key]) for key, check in CHECKS.items() if key in entries and entries[key][0] is not None
    }
    query_length, expansion = values.get("query_length"), values.get("query_expansion")
    if expansion and query_length and query_length < expansion.length:
        where = entries["query_length"][1]
        raise ModelRefused(f"{where} {query_length} is below the length of query_expansion, {expansion.length}")
    return LateInteractionRecipe(
        query_length=query_length,
        document_length=values.get("document_length"),
        expansion=expansion,
        skiplist=values.get("skiplist_words", ()),
        skip_in_queries="query" in values.get("skiplist_tasks", ()),
        skip_in_documents="document" in values.get("skiplist_tasks", ()),
        markers={side: values.get(key, "") for side, key in SIDES.items() if key in entries},
        padding_side=padding_side,
        entries=entries,
    )

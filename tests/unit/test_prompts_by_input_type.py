"""Which prompt an input type brings: what sentence-transformers documents, and where its 6.2 does something else."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import AddedToken

from frontend_service.domain.requests import PromptChoice, Truncation
from frontend_service.tokenizing.tokenizer import ModelTokenizer
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.card import card_of
from gpu_worker.model.loading import load
from shared.vectors import InputType
from support.references import near
from support.tiny import CPU, DENSE, ask, dense_rows, raw, reader, write_encoder, write_json

pytestmark = pytest.mark.usefixtures("remembered")
PROMPT = "w5 w6 w7 "
TEXTS = ["w10 w11 w12 w13 w14 w15 w16 w17", "w20 w30 w40"]
QUERY, DOCUMENT, NEITHER = InputType.QUERY, InputType.DOCUMENT, InputType.UNSPECIFIED
COSINES = {TEXTS[0]: 0.843, TEXTS[1]: 0.829}
"""Of a text with the prompt and without it."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mean of a tiny BERT as sentence-transformers saves it."""
    folder = tmp_path_factory.mktemp("prompts")
    write_encoder(folder / "encoder", "tiny-bert")
    modules = [Transformer(str(folder / "encoder")), Pooling(64, "mean")]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder / "saved"), create_model_card=False)
    return folder / "saved"


def tell(folder: Path, prompts: dict[str, str], default: str | None = None) -> SentenceTransformer:
    """Says in the files which prompts there are; what the reference makes of them."""
    name = "config_sentence_transformers"
    known = json.loads((folder / f"{name}.json").read_text())
    write_json(folder, **{name: known | {"prompts": prompts, "default_prompt_name": default}})
    return SentenceTransformer(str(folder), device="cpu")


def ours(folder: Path, side: InputType, task: str | None = None) -> np.ndarray:
    """Vectors of `TEXTS` as that input type, or for a task, by a frontend and an engine."""
    model = load(str(folder), CPU)
    tokenization = ModelTokenizer(model.tokenizer.content, card_of(model))
    prompt = tokenization.prompt(PromptChoice(input_type=side, task=task))
    tokens = tokenization.texts(TEXTS, prompt, Truncation(), "texts[{}]", side).tokens
    ids = np.split(np.frombuffer(tokens.ids, dtype="<i4"), tokens.offsets[1:-1])
    return dense_rows(ask(ModelEngine(model), raw(DENSE), [each.tolist() for each in ids]))


def cosines(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return (left * right).sum(axis=1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)


def test_prompts_named_query_and_document(saved: Path) -> None:
    """As the reference has them, which has no others beside them by input type."""
    oracle = tell(saved, {"query": PROMPT, "document": "w8 ", "passage": "w9 "})
    near(ours(saved, QUERY), oracle.encode_query(TEXTS))
    near(ours(saved, DOCUMENT), oracle.encode_document(TEXTS))
    near(ours(saved, NEITHER), oracle.encode(TEXTS))


@pytest.mark.parametrize("name", ["passage", "corpus"])
def test_other_names_of_a_documents_prompt(saved: Path, name: str) -> None:
    """Ours goes before documents, as the reference's encode_document documents it; its 6.2 leaves it out."""
    oracle = tell(saved, {name: PROMPT})
    assert f'``"{name}"``' in str(SentenceTransformer.encode_document.__doc__)
    near(ours(saved, DOCUMENT), oracle.encode(TEXTS, prompt=PROMPT))
    theirs = oracle.encode_document(TEXTS)
    near(ours(saved, NEITHER), theirs)
    assert cosines(ours(saved, DOCUMENT), theirs) == pytest.approx(list(COSINES.values()), abs=5e-4)


@pytest.mark.parametrize("side", [QUERY, DOCUMENT])
def test_the_default_prompt(saved: Path, side: InputType) -> None:
    """Ours stands in where an input type has no prompt of its own; the reference's 6.2 leaves it out there."""
    oracle = tell(saved, {"plain": PROMPT}, default="plain")
    near(ours(saved, NEITHER), oracle.encode(TEXTS))
    near(ours(saved, side), oracle.encode(TEXTS))
    theirs = oracle.encode_query(TEXTS) if side is QUERY else oracle.encode_document(TEXTS)
    near(theirs, oracle.encode(TEXTS, prompt=""))
    assert cosines(ours(saved, side), theirs) == pytest.approx(list(COSINES.values()), abs=5e-4)


@pytest.mark.parametrize(("prompts", "default"), [({"passage": PROMPT}, None), ({"plain": PROMPT}, "plain")])
def test_files_as_sentence_transformers_saves_them_are_read_alike(
    saved: Path, tmp_path: Path, prompts: dict[str, str], default: str | None
) -> None:
    """Its 6.2 writes empty prompts for queries and documents beside others, which then hold in both."""
    oracle = tell(saved, prompts, default)
    oracle.save(str(tmp_path), create_model_card=False)
    written = json.loads((tmp_path / "config_sentence_transformers.json").read_text())["prompts"]
    assert written == {"query": "", "document": "", **prompts}
    near(ours(tmp_path, QUERY), oracle.encode_query(TEXTS))
    near(ours(tmp_path, DOCUMENT), oracle.encode_document(TEXTS))
    near(ours(tmp_path, NEITHER), oracle.encode(TEXTS))


@pytest.mark.parametrize("framed", [True, False], ids=["special tokens around a text", "none"])
def test_a_prompt_that_is_left_out_of_pooling_has_the_references_length(tmp_path: Path, framed: bool) -> None:
    """Whatever it ends with: a word, an unknown one, a special token of the tokenizer's class, one that is none there.

    The reference does not count the last token where it is special: what closes every text, or else the prompt's own.
    """
    tokenizer = reader(extra_special_tokens=["w30"])
    tokenizer.add_tokens([AddedToken("w31", special=True)])
    if not framed:
        tokenizer.backend_tokenizer.post_processor = None
    write_encoder(tmp_path / "encoder", "tiny-bert")
    tokenizer.save_pretrained(tmp_path / "encoder")
    modules = [Transformer(str(tmp_path / "encoder")), Pooling(64, "mean", include_prompt=False)]
    SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path / "saved"), create_model_card=False)
    oracle, model = SentenceTransformer(str(tmp_path / "saved"), device="cpu"), load(str(tmp_path / "saved"), CPU)
    tokenization, lengths = ModelTokenizer(model.tokenizer.content, card_of(model)), []
    assert model.tokenizer.special_ids == tuple(oracle.tokenizer.all_special_ids)
    for end in ("w6 ", "\u5b57 ", "[MASK]", "[SEP] ", "w30", "w31 "):
        prompt = f"w4 w5 {end}"
        made = tokenization.texts(TEXTS, prompt, Truncation(), "texts[{}]")
        ids = np.split(np.frombuffer(made.tokens.ids, dtype="<i4"), made.tokens.offsets[1:-1])
        rows = ask(ModelEngine(model), raw(DENSE), [each.tolist() for each in ids], prompt_lengths=made.prompt_lengths)
        near(dense_rows(rows), oracle.encode(TEXTS, prompt=prompt))
        lengths.append(made.prompt_lengths[0])
    assert lengths == ([4] * 6 if framed else [3, 2, 2, 2, 2, 3])
    told_less = ModelTokenizer(model.tokenizer.content, replace(card_of(model), special_ids=()))
    made = told_less.texts(TEXTS, "w4 w5 w6 ", Truncation(), "texts[{}]")
    assert made.prompt_lengths[0] == lengths[0]


def test_tasks_by_the_names_of_prompts(saved: Path) -> None:
    """Jina's: those of jina-embeddings-v3, and those of jina-code-embeddings, which the API writes otherwise."""
    prompts = {"retrieval.query": "w5 w6 ", "nl2code_query": PROMPT, "nl2code_document": "w8 ", "query": "w9 "}
    oracle = tell(saved, prompts)
    for task, side, name in (
        ("retrieval.query", QUERY, "retrieval.query"),
        ("nl2code.query", QUERY, "nl2code_query"),
        ("nl2code.passage", DOCUMENT, "nl2code_document"),
    ):
        near(ours(saved, side, task), oracle.encode(TEXTS, prompt_name=name))

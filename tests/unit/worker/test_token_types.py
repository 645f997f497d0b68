"""Models are fed the token types that their own tokenizer class gives, for texts and for pairs."""

import inspect
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder
from transformers import CONFIG_MAPPING, AutoModelForSequenceClassification, BertConfig, BertModel

from frontend_service.domain.requests import Truncation
from frontend_service.tokenizing.pairs import PairTexts
from frontend_service.tokenizing.tokenizer import ModelTokenizer
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.card import card_of
from gpu_worker.model.loading import load
from gpu_worker.model.source import quiet
from gpu_worker.model.verify.own_run import feeding_of
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.texts import Frame, TokenTypes
from gpu_worker.repository import tokenizer
from gpu_worker.repository.tokenizer import PLAIN, TokenizerInputs, WrittenInputs
from harness.random_models import miniature
from shared.errors import ModelRefused
from shared.jobs import Classify, Job
from support.architectures import EQUAL, MIXED, SERVED, change, compare, name_token_types, type_tokens, write
from support.chunks import run_to_end
from support.own_tokenizer import class_of, own_tokenizer
from support.tiny import CPU, ids_of, run, scores

BEGIN, END, CLASS = 2, 3, 7
LENGTHS = [*MIXED[:10], *EQUAL[-3:], 1, 2, 150]
XLNET = TokenTypes(
    text=Frame(after=((END, 0), (CLASS, 2))),
    pair=Frame(after=((END, 1), (CLASS, 2))),
)
BERT = TokenTypes(text=Frame(before=((BEGIN, 0),), after=((END, 0),)), pair=Frame(after=((END, 1),)))
MORE_THAN_WORDS = {"esmc", "pegasus", "roformer"}
"""Those whose tokenizer class wants more than a vocabulary, or has one of its own: ESM C's 33 amino acids."""
SEVEN_TYPES = {"tapas"}
"""Those that read a row of types for each token; sentence-transformers fails with one type."""
OFTEN = {("fnet", False), ("xlnet", True)}
TYPED: dict[str, dict[str, int]] = {
    "zeros": {},
    "first": {"before": 1},
    "body": {"body": 1, "after": 1},
    "last": {"after": 1},
    "second type": {"after": 2},
}


def types_of(rule: TokenTypes, texts: Sequence[Sequence[int]], seconds: Sequence[int] = ()) -> list[list[int]] | None:
    batch = RaggedBatch.pack(
        [np.array(text, dtype=np.int32) for text in texts], CPU.device, types=rule, second_segments=seconds
    )
    if batch.token_types is None:
        return None
    return [row.tolist() for row in np.split(batch.token_types[0].numpy(), batch.offsets[1:-1])]


def test_special_tokens_at_the_ends_of_a_text_have_types_of_their_own() -> None:
    """Only there, and only all of them: ids without them are those of a caller who wants none."""
    texts = [[11, 12, END, CLASS], [END, CLASS], [11, CLASS], [CLASS], [11, END, CLASS, 12, END, CLASS]]
    assert types_of(XLNET, texts) == [[0, 0, 0, 2], [0, 2], [0, 0], [0], [0, 0, 0, 0, 0, 2]]


def test_the_second_text_of_a_pair_has_the_type_one() -> None:
    """Beside texts alone, and with what its own template gives."""
    pairs = [[11, END, 12, 13, END, CLASS], [11, 12, END, CLASS], [11, END, END, CLASS]]
    assert types_of(XLNET, pairs, [2, 0, 2]) == [[0, 0, 1, 1, 1, 2], [0, 0, 0, 2], [0, 0, 1, 2]]


def test_types_that_are_all_0_are_left_out_where_they_are_nothing() -> None:
    """And fed where they are not: GPT-2 looks them up among its words."""
    text = [BEGIN, 11, END]
    assert types_of(BERT, [text]) is None
    assert types_of(TokenTypes(text=BERT.text, pair=BERT.pair, zeros=True), [text]) == [[0, 0, 0]]
    assert types_of(BERT, [text, [BEGIN, 11, END, 12, END]], [0, 3]) == [[0, 0, 0], [0, 0, 0, 1, 1]]


def served(kind: str, folder: Path, typed: str) -> Any:
    """A tiny model whose tokenizer gives such types, compared text by text."""
    write(folder, kind)
    type_tokens(folder, **TYPED[typed])
    return compare(kind, folder, LENGTHS)


@pytest.mark.parametrize(
    ("kind", "typed"),
    [("xlnet", "second type"), ("bert", "body"), ("gpt2", "zeros"), ("codegen", "last"), ("hrm_text", "body")],
)
def test_a_text_alone_is_fed_with_its_types(kind: str, typed: str, tmp_path: Path) -> None:
    """XLNet's last token is of type 2; a template may type any text; GPT-2's kind finds types among its words; HRM lets
    tokens of type 1 see each other. Fed none, their vectors were off by 0.01 to 0.4 at unit length."""
    served(kind, tmp_path, typed)


def test_a_model_without_types_is_served_as_before(tmp_path: Path) -> None:
    """sentence-transformers feeds DistilBERT with none, since its class names none."""
    assert served("distilbert", tmp_path, "body").encoder.token_types is None


def test_a_type_that_the_model_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IndexError):
        served("bert", tmp_path, "second type")
    with pytest.raises(ModelRefused, match="cannot run"):
        load(str(tmp_path), CPU)


@pytest.mark.slow
@pytest.mark.parametrize("typed", TYPED)
@pytest.mark.parametrize("kind", SERVED)
def test_every_architecture_is_fed_with_its_types(kind: str, typed: str, tmp_path: Path) -> None:
    """In every place of a text; those that a model lacks are not asked for."""
    if "token_type_ids" not in inspect.signature(miniature.model_class(CONFIG_MAPPING[kind]).forward).parameters:
        pytest.skip("its class names none")
    if kind in SEVEN_TYPES:
        pytest.skip("it reads several types a token")
    known = getattr(miniature.config_of(kind), "type_vocab_size", None)
    if known is not None and max(TYPED[typed].values(), default=0) >= known:
        pytest.skip(f"it has {known} types")
    served(kind, tmp_path, typed)


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        pytest.param(kind, named, marks=() if (kind, named) in OFTEN else pytest.mark.slow)
        for kind in SERVED
        if kind not in MORE_THAN_WORDS
        for named in (False, True)
    ],
)
def test_every_architecture_is_served_with_its_own_tokenizer_class(kind: str, named: bool, tmp_path: Path) -> None:
    """As transformers' class makes it, and where tokenizer_config.json names token types, as older releases gave them.

    FNet's gives no mask.
    """
    if class_of(kind) is None:
        pytest.skip("transformers reads any tokenizer.json for it, or has a class that no frontend can read")
    with quiet():
        write(tmp_path, kind, own_tokenizer(kind))
    if named:
        name_token_types(tmp_path)
    compare(kind, tmp_path, LENGTHS)


def as_a_frontend(model: Any, pairs: Sequence[tuple[str, str]]) -> Job:
    """Pairs as the frontend sends them."""
    firsts, seconds = zip(*pairs, strict=True)
    texts = PairTexts(firsts=firsts, seconds=seconds, matrix=False, entry="documents[{}]", cut=Truncation())
    tokenized = run_to_end(ModelTokenizer(model.tokenizer.content, card_of(model)).pairs(texts))
    return Job(id=1, work=Classify(), tokens=tokenized.tokens, second_segments=tokenized.second_segments)


PAIRS = [("w1 w2", "w3"), ("w5", "w6 w7 w8 w9"), ("w1 w2 w3 w4 w5 w6", "w10 w11"), ("w1", "w1")]


@pytest.mark.parametrize(
    ("kind", "matters"), [("xlnet", True), ("bert", True), pytest.param("deberta", False, marks=pytest.mark.slow)]
)
def test_pairs_are_fed_with_their_types(kind: str, matters: bool, tmp_path: Path) -> None:
    """As sentence-transformers' CrossEncoder feeds them; XLNet's were fed with none at all. DeBERTa has no types."""
    with quiet():
        torch.manual_seed(0)
        config = miniature.config_of(kind, num_labels=1, id2label={0: "relevant"})
        theirs = AutoModelForSequenceClassification.from_config(config).eval()
        miniature.widen(theirs, 0.2)
        theirs.save_pretrained(tmp_path)
        own_tokenizer(kind).save_pretrained(tmp_path)
        name_token_types(tmp_path)
        expected = [
            float(CrossEncoder(str(tmp_path), device="cpu").predict([pair], activation_fn=torch.nn.Identity())[0])
            for pair in PAIRS
        ]
    model = load(str(tmp_path), CPU)
    assert np.allclose(scores(run(ModelEngine(model), [as_a_frontend(model, PAIRS)])[0])[:, 0], expected, atol=1e-4)
    untyped = Job(id=2, work=Classify(), tokens=as_a_frontend(model, PAIRS).tokens)
    equal = np.allclose(scores(run(ModelEngine(model), [untyped])[0])[:, 0], expected, atol=1e-3)
    assert equal is not matters


def test_what_the_gate_is_fed_is_what_the_tokenizer_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a rule that gave other types would be refused."""
    write(tmp_path, "xlnet")
    type_tokens(tmp_path, after=2)
    model = load(str(tmp_path), CPU)
    written = model.tokenizer.inputs.texts[0]
    assert written.inputs["token_type_ids"].tolist()[-1] == 2
    assert written.ids.tolist() == ids_of(model, ["a"])[0]
    nothing = replace(PLAIN, types=TokenTypes(zeros=True))
    monkeypatch.setattr(tokenizer, "inputs_of", lambda tokenizer: replace(nothing, texts=model.tokenizer.inputs.texts))
    with pytest.raises(ModelRefused, match="hidden states differ"):
        load(str(tmp_path), CPU)


class Boxes:
    """A tokenizer that wants more than words."""

    def __call__(self, text: str) -> Any:
        raise ValueError("boxes are missing")


def test_a_tokenizer_that_reads_no_text_is_refused() -> None:
    with pytest.raises(ModelRefused, match=r"its tokenizer \(Boxes\) reads no text by itself: boxes are missing"):
        tokenizer.inputs_of(Boxes())


def one_text(**others: list[int]) -> TokenizerInputs:
    values = {"input_ids": [2, 5, 3], "attention_mask": [1, 1, 1], **others}
    inputs = {name: np.array(row, dtype=np.int64) for name, row in values.items()}
    return TokenizerInputs(types=None, texts=(WrittenInputs(inputs=inputs),))


def tiny_bert() -> BertModel:
    return BertModel(BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2))


def test_inputs_that_nobody_feeds_are_refused() -> None:
    """Where the model reads them; what it does not read counts for nothing."""
    with pytest.raises(ModelRefused, match="gives position_ids beside token ids, and BertModel reads them"):
        feeding_of(tiny_bert(), one_text(position_ids=[2, 1, 0]))
    assert feeding_of(tiny_bert(), one_text(lengths=[3, 3, 3])).types is None


def test_types_that_cannot_be_told_are_refused() -> None:
    """Of pairs, and of queries with tokens of their own."""
    untold = TokenizerInputs(types=BERT, types_hold_for_pairs=False)
    assert feeding_of(tiny_bert(), untold).types
    with pytest.raises(ModelRefused, match="do not tell where the second text begins"):
        feeding_of(tiny_bert(), untold, pairs=True)
    with pytest.raises(ModelRefused, match="token types that are not 0, and its queries are expanded"):
        feeding_of(tiny_bert(), TokenizerInputs(types=XLNET), expands=True)
    assert feeding_of(tiny_bert(), TokenizerInputs(types=BERT), expands=True).types


def test_a_template_may_not_tell_the_texts_of_a_pair_apart(tmp_path: Path) -> None:
    """Texts alone are served, as long as nobody asks for pairs."""
    write(tmp_path, "bert")
    type_tokens(tmp_path)

    def all_ones(file: Any) -> None:
        for piece in file["post_processor"]["pair"]:
            next(iter(piece.values()))["type_id"] = 1

    change(tmp_path / "tokenizer.json", all_ones)
    assert not load(str(tmp_path), CPU).tokenizer.inputs.types_hold_for_pairs

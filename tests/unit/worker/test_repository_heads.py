"""Sparse encoders, cross-encoders and yes/no rerankers as sentence-transformers writes them, and GritLM."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder, SparseEncoder
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.cross_encoder.modules import LogitScore
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedTokenizerFast

from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.loading import Model, load
from shared.errors import ModelRefused
from shared.jobs import Classify
from shared.vectors import Activation
from support.tiny import (
    CPU,
    DENSE,
    NAMES,
    SPARSE,
    ask,
    dense_rows,
    encode,
    ids_of,
    random_ids,
    reader,
    scores,
    sparse_rows,
    write_encoder,
    write_json,
)

pytestmark = pytest.mark.usefixtures("one_thread")
TEXTS = ["w1 w2 w3", "w7", "w5 " * 60, "w9 w8 w7 w6"]
PAIRS = [("w1 w2", "w3 w4 w5"), ("w7", "w8 " * 30), ("w1", "w1")]
ASKED = (
    "{% set told = namespace(how='w24 w25') %}{% for m in messages %}"
    "{% if m.role == 'system' %}{% set told.how = m.content %}{% endif %}{% endfor %}w20 {{ told.how }} "
    "{% for m in messages %}{% if m.role == 'query' %}w21 {{ m.content }} "
    "{% elif m.role == 'document' %}w22 {{ m.content }} w23{% endif %}{% endfor %}"
)
IF_TOLD = "{% if messages[0].role == 'system' %}w20 {{ told.how }} {% endif %}"
REST = "w21 {query} w22 {document} w23"
DOCUMENT_FIRST = (
    "{% for m in messages if m.role == 'document' %}{{ m.content }}{% endfor %} "
    "{% for m in messages if m.role == 'query' %}{{ m.content }}{% endfor %}"
)
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }} <|im_end|> {% endfor %}"
"""A chat template that prints any roles, those of a query and a document too, and asks nothing about them."""
PRINTED = "<|im_start|>query {query} <|im_end|> <|im_start|>document {document} <|im_end|> "
TEMPLATES = {
    "a default instruction": (ASKED, f"w20 w24 w25 {REST}", "w20 {instruction} " + REST),
    "one where told": (ASKED.replace("w20 {{ told.how }} ", IF_TOLD), REST, "w20 {instruction} " + REST),
    "no instruction": (ASKED.replace("w20 {{ told.how }} ", ""), REST, ""),
    "any roles": (CHATML, PRINTED, "<|im_start|>system {instruction} <|im_end|> " + PRINTED),
}


def test_the_legacy_form_of_sparse_encoders(tmp_path: Path) -> None:
    write_encoder(tmp_path, "tiny-bert", "masked-lm")
    base = "sentence_transformers.sparse_encoder.models"
    kinds = {"MLMTransformer": "", "SpladePooling": "1_Splade"}
    modules = [{"name": kind, "type": f"{base}.{kind}", "path": path} for kind, path in kinds.items()]
    settings = {"pooling_strategy": "max", "activation_function": "relu", "word_embedding_dimension": 1000}
    described = {"model_type": "SparseEncoder"}
    write_json(tmp_path, modules=modules, config_sentence_transformers=described, **{"1_Splade__config": settings})
    expected = SparseEncoder(str(tmp_path), device="cpu").encode(TEXTS, convert_to_tensor=True).to_dense().numpy()
    model = load(str(tmp_path), CPU)
    ours = sparse_rows(ask(ModelEngine(model), encode(SPARSE), ids_of(model, TEXTS)))
    assert np.abs(ours - expected).max() < 2e-5 * max(1.0, expected.max())


def logits(model: Model, pairs: list[tuple[str, str]]) -> np.ndarray:
    """Pairs as a frontend makes them: with the second text's segment."""
    encodings = Tokenizer.from_buffer(model.tokenizer.content).encode_batch(pairs)
    seconds = tuple(encoding.type_ids.index(1) for encoding in encodings)
    assert model.recipe.classifier is not None
    result = ask(ModelEngine(model), Classify(), [encoding.ids for encoding in encodings], second_segments=seconds)
    return scores(result, len(model.recipe.classifier.labels))


def test_segments_count_only_where_the_tokenizer_gives_them(tmp_path: Path) -> None:
    """transformers passes on what model_input_names lists, whatever the model could embed."""
    write_encoder(tmp_path / "plain", "tiny-bert", "sequence-classification", labels=1)
    reader(model_input_names=["input_ids", "attention_mask"]).save_pretrained(tmp_path / "plain")
    oracle = CrossEncoder(str(tmp_path / "plain"), activation_fn=nn.Identity(), device="cpu")
    oracle.save(str(tmp_path / "saved"), create_model_card=False)
    assert np.abs(logits(load(str(tmp_path / "saved"), CPU), PAIRS)[:, 0] - oracle.predict(PAIRS)).max() < 1e-4


def test_a_plain_classifier_has_the_labels_and_the_activation_of_its_config(tmp_path: Path) -> None:
    """Without modules.json; a softmax where there are several labels and nothing is said."""
    write_encoder(tmp_path, "tiny-bert", "sequence-classification", labels=3)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"id2label": {"0": "no", "2": "yes", "1": "maybe"}, "label2id": {"no": 0, "yes": 2, "maybe": 1}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    recipe = load(str(tmp_path), CPU).recipe.classifier
    assert recipe is not None
    assert (recipe.labels, recipe.activation) == (("no", "maybe", "yes"), Activation.SOFTMAX)


def test_a_cross_encoder_over_pooled_rows(encoder: Path, tmp_path: Path) -> None:
    torch.manual_seed(3)
    head = Dense(32, 1, activation_function=nn.Identity(), module_output_name="scores")
    modules = [Transformer(str(encoder)), Pooling(64, "cls"), Dense(64, 32, activation_function=nn.GELU()), head]
    oracle = CrossEncoder(modules=modules, activation_fn=nn.Identity(), device="cpu")
    oracle.save(str(tmp_path), create_model_card=False)
    ours = logits(load(str(tmp_path), CPU), PAIRS)[:, 0]
    assert np.abs(ours - oracle.predict(PAIRS)).max() < 1e-4


@pytest.mark.parametrize("template", TEMPLATES)
def test_yes_no_rerankers(tmp_path: Path, template: str) -> None:
    """LogitScore on a causal model: its ids, its difference, and its template around query and document; by the logit
    of "yes" alone where there is no other word."""
    no = None if template == "no instruction" else 801
    write_encoder(tmp_path / "plain", "tiny-qwen3", "causal-lm")
    content, *expected = TEMPLATES[template]
    named = reader()
    named.chat_template = content
    named.save_pretrained(tmp_path / "plain")
    modules = [Transformer(str(tmp_path / "plain"), transformer_task="text-generation"), LogitScore(800, no)]
    oracle = CrossEncoder(modules=modules, activation_fn=nn.Identity(), device="cpu")
    oracle.save(str(tmp_path / "saved"), create_model_card=False)
    model = load(str(tmp_path / "saved"), CPU)
    recipe = model.recipe.classifier
    assert recipe is not None
    assert recipe.yes_no == (800, no)
    assert [recipe.template, recipe.instructed_template] == expected
    assert_pairs_equal(model, oracle, named)


def assert_pairs_equal(model: Model, oracle: CrossEncoder, named: PreTrainedTokenizerFast) -> None:
    """Token ids by the template of the recipe, and scores of them."""
    assert model.recipe.classifier is not None
    features = [oracle.preprocess([pair])["input_ids"][0].tolist() for pair in PAIRS]
    template = model.recipe.classifier.template
    texts = [template.format(query=query, document=document) for query, document in PAIRS]
    assert features == [named(text, add_special_tokens=False)["input_ids"] for text in texts]
    ours = scores(ask(ModelEngine(model), Classify(), features))[:, 0]
    assert np.abs(ours - oracle.predict(PAIRS)).max() < 1e-4


def write_plain_reranker(folder: Path, family: str, template: str | None = None) -> Path:
    """A causal model without modules.json, whose tokenizer has the special tokens of Qwen3."""
    write_encoder(folder, family, "causal-lm")
    named = reader()
    named.add_tokens(["<|im_start|>", "<think>"], special_tokens=True)
    named.chat_template = template
    named.save_pretrained(folder)
    return folder


QWEN3 = "<Instruct>: Given a web search query, retrieve"


@pytest.mark.parametrize(
    ("place", "template", "question"),
    [
        ("Tiny-Reranker/snapshots/0a1b2c", None, QWEN3),
        ("A-Reranker", "{{ raise_exception('No user query') }}", QWEN3),
        ("model", ASKED, f"w20 w24 w25 {REST}"),
    ],
    ids=["Qwen3's question", "a template that refuses these roles", "its own question"],
)
def test_a_reranker_without_modules_asks_for_yes_and_no(
    tmp_path: Path, place: str, template: str | None, question: str
) -> None:
    """By its name and its architecture, or by a template that tells that it is one, whatever its name."""
    recipe = load(str(write_plain_reranker(tmp_path / place, "tiny-qwen3", template)), CPU).recipe.classifier
    assert recipe is not None
    assert recipe.yes_no == tuple(reader().convert_tokens_to_ids(["yes", "no"]))
    assert "{instruction}" in recipe.instructed_template
    assert question in recipe.template
    assert ("<|im_start|>assistant" in recipe.template) == (question == QWEN3)


@pytest.mark.parametrize(
    ("family", "template", "said"),
    [
        ("tiny-qwen2", None, "no file says how it is asked"),
        ("tiny-qwen3", DOCUMENT_FIRST, "puts the document before the query"),
        ("tiny-qwen3", CHATML, "no file says how it is asked: its chat template names no role 'query' and no role"),
    ],
)
def test_a_reranker_whose_question_is_not_known_is_refused(
    tmp_path: Path, family: str, template: str | None, said: str
) -> None:
    """Qwen3's question is Qwen3's alone: another model would rank by it, and wrongly."""
    with pytest.raises(ModelRefused, match=said):
        load(str(write_plain_reranker(tmp_path / "Some-Reranker", family, template)), CPU)


def test_a_tokenizer_without_the_words_is_refused(tmp_path: Path) -> None:
    folder = write_plain_reranker(tmp_path / "model", "tiny-qwen3", ASKED)
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace('"yes"', '"yea"'))
    with pytest.raises(ModelRefused, match="the tokenizer has no tokens 'yes' and 'no'"):
        load(str(folder), CPU)


def test_a_classifier_of_pairs_by_a_template(tmp_path: Path) -> None:
    """As sentence-transformers saves it, with arguments for the template; plain, it is read the same."""
    write_encoder(tmp_path / "plain", "tiny-qwen3", "sequence-classification", labels=1)
    named = reader()
    named.chat_template = ASKED + "{{ closing }}"
    named.save_pretrained(tmp_path / "plain")
    oracle = CrossEncoder(str(tmp_path / "plain"), activation_fn=nn.Identity(), device="cpu")
    oracle[0].processing_kwargs = {"chat_template": {"closing": "w26"}}
    oracle.save(str(tmp_path / "saved"), create_model_card=False)
    model, plain = load(str(tmp_path / "saved"), CPU), load(str(tmp_path / "plain"), CPU)
    assert model.recipe.classifier is not None
    assert model.recipe.classifier.template == f"w20 w24 w25 {REST}w26"
    assert_pairs_equal(model, oracle, named)
    assert plain.recipe.classifier is not None
    assert plain.recipe.classifier.template == f"w20 w24 w25 {REST}"


def test_grit_lm_pools_what_follows_its_mark(tmp_path: Path) -> None:
    """Bidirectional Mistral, the mean of the tokens behind the mark, unit length; of all where there is none."""
    model = write_encoder(tmp_path, "tiny-mistral-bidirectional")
    config = json.loads((tmp_path / "config.json").read_text())
    config.pop("is_causal", None)
    config |= {"architectures": ["MistralForCausalLM"], "auto_map": {"AutoModel": "modeling_gritlm7b.GritLM"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    description = json.loads(reader().backend_tokenizer.to_str())
    place = description["model"]["vocab"].pop("w850")
    added = {"id": place, "content": "<|embed|>\n", "special": True}
    description["added_tokens"].append({**description["added_tokens"][0], **added})
    description["model"]["vocab"]["<|embed|>\n"] = place
    tokenizer = Tokenizer.from_str(json.dumps(description))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **NAMES).save_pretrained(tmp_path)
    engine = ModelEngine(load(str(tmp_path), CPU))
    assert engine.model.recipe.instruction_mark == "<|embed|>\n"
    assert set(engine.model.instruction_marks) == {(place,)}
    texts = [[20, 21, place, *random_ids([25], seed=1)[0]], [place, 30, 31], random_ids([9], seed=2)[0]]
    ours = dense_rows(ask(engine, encode(DENSE), texts))
    for row, text in zip(ours, texts, strict=True):
        with torch.inference_mode():
            hidden = model(input_ids=torch.tensor([text])).last_hidden_state[0]
        mean = hidden[text.index(place) + 1 if place in text else 0 :].mean(dim=0)
        assert np.abs(row - (mean / mean.norm()).numpy()).max() < 2e-5

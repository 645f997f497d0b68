"""Classifiers and rerankers that sentence-transformers wrote, served by both services and compared with itself."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder.modules import LogitScore
from transformers import AutoTokenizer, pipeline

from selvage.v1 import classification_pb2, model_pb2, ranking_pb2
from support.references import near
from support.served import served
from support.tiny import reader, write_encoder

TEXTS = ["w1 w2 w3", "w7", "", "w5 " * 60, "some other words", "w9 w8 w7 w6 w1"]
QUERY, DOCUMENTS = "w4 w5 w6", TEXTS


@pytest.mark.parametrize(
    ("encoder", "labels", "names"),
    [
        ("tiny-bert", 1, ["input_ids", "token_type_ids", "attention_mask"]),
        ("tiny-modernbert", 3, ["input_ids", "attention_mask"]),
    ],
)
async def test_cross_encoder(tmp_path: Path, encoder: str, labels: int, names: list[str]) -> None:
    """Scores of pairs, activated and raw, cut as the reference cuts, with token types where the tokenizer has them."""
    write_encoder(tmp_path / "encoder", encoder, "sequence-classification", labels)
    reader(model_input_names=names).save_pretrained(tmp_path / "encoder")
    oracle = CrossEncoder(str(tmp_path / "encoder"), device="cpu", max_length=64)
    oracle.save(str(tmp_path / "saved"), create_model_card=False)
    pairs = [(QUERY, document) for document in DOCUMENTS]
    async with served(tmp_path / "saved") as calls:
        ask = {"texts": [QUERY] * len(DOCUMENTS), "text_pairs": DOCUMENTS, "truncate": True}
        plain = await calls.classification.Classify(classification_pb2.ClassifyRequest(**ask))
        raw = await calls.classification.Classify(classification_pb2.ClassifyRequest(**ask, normalize=False))
        if labels == 1:
            request = ranking_pb2.RerankRequest(query=QUERY, documents=DOCUMENTS, truncate=True)
            ranked = await calls.ranking.Rerank(request)
            score = ranking_pb2.ScoreRequest(queries=[QUERY, "w1"], documents=DOCUMENTS, truncate=True)
            scores = (await calls.ranking.Score(score)).scores
    expected = oracle.predict(pairs).reshape(len(pairs), labels)
    near(np.reshape(plain.scores, (-1, labels)), expected)
    logits = oracle.predict(pairs, activation_fn=torch.nn.Identity()).reshape(len(pairs), labels)
    near(np.reshape(raw.scores, (-1, labels)), logits)
    assert list(plain.labels) == [oracle.config.id2label[index] for index in range(labels)]
    if labels == 1:
        order = np.argsort(-expected[:, 0], kind="stable")
        assert [each.index for each in ranked.results] == order.tolist()
        near(np.array([each.score for each in ranked.results]), expected[order, 0])
        both = [(query, document) for query in (QUERY, "w1") for document in DOCUMENTS]
        near(np.array(scores), oracle.predict(both))


async def test_documents_with_large_logits_come_in_their_order(tmp_path: Path) -> None:
    """Where a sigmoid in float32 is 1 for all of them."""
    folder = tmp_path / "encoder"
    write_encoder(folder, "tiny-bert", "sequence-classification", 1)
    reader().save_pretrained(folder)
    oracle = CrossEncoder(str(folder), device="cpu", max_length=64)
    with torch.no_grad():
        oracle.model.classifier.weight *= 20
        oracle.model.classifier.bias += 60
    oracle.save(str(tmp_path / "saved"), create_model_card=False)
    documents = [f"w{number} w{3 * number}" for number in range(1, 30)]
    pairs = [(QUERY, document) for document in documents]
    logits = oracle.predict(pairs, activation_fn=torch.nn.Identity())
    assert logits.min() > 18
    assert (oracle.predict(pairs) == 1).all()
    async with served(tmp_path / "saved") as calls:
        request = ranking_pb2.RerankRequest(query=QUERY, documents=documents, top_n=20)
        ranked = (await calls.ranking.Rerank(request)).results
    assert [each.index for each in ranked] == np.argsort(-logits, kind="stable")[:20].tolist()
    assert {each.score for each in ranked} == {1.0}
    near(np.array([each.logit for each in ranked]), np.sort(logits)[::-1][:20])


TEMPLATE = (
    "{% for m in messages if m.role == 'system' %}{% set instruct = m.content %}w20 {{ instruct }} {% else %}w20 w21 "
    "{% endfor %}w22 {% for m in messages if m.role == 'query' %}{{ m.content }}{% endfor %} w23 "
    "{% for m in messages if m.role == 'document' %}{{ m.content }}{% endfor %} w24 w25"
)


@pytest.mark.parametrize("template", [TEMPLATE, None], ids=["template", "no template"])
async def test_yes_no(tmp_path: Path, template: str | None) -> None:
    """Log-odds of yes and no after the template of the files, kept whole when documents are cut."""
    write_encoder(tmp_path / "encoder", "tiny-qwen3", "causal-lm")
    tokenizer = reader(chat_template=template, model_max_length=48, padding_side="left")
    tokenizer.save_pretrained(tmp_path / "encoder")
    oracle = CrossEncoder(str(tmp_path / "encoder"), device="cpu")
    assert isinstance(oracle[1], LogitScore)
    oracle.save(str(tmp_path / "saved"), create_model_card=False)
    pairs = [(QUERY, document) for document in DOCUMENTS]
    async with served(tmp_path / "saved") as calls:
        card = (await calls.model.GetModel(model_pb2.GetModelRequest())).card
        ask = {"query": QUERY, "documents": DOCUMENTS, "truncate": True}
        ranked = await calls.ranking.Rerank(ranking_pb2.RerankRequest(**ask))
        asked = None
        if template:
            asked = await calls.ranking.Rerank(ranking_pb2.RerankRequest(**ask, instruction="w30 w31"))
    assert card.family == "qwen3"
    for reply, prompt in ((ranked, None), (asked, "w30 w31")):
        if reply is not None:
            expected = oracle.predict(pairs, prompt=prompt)
            scores = {each.index: each.score for each in reply.results}
            near(np.array([scores[index] for index in range(len(pairs))]), expected)


async def test_a_score_template_beside_the_weights(tmp_path: Path) -> None:
    """Of a model that no other file calls a reranker: one logit less another, rescaled; with an instruction too."""
    model = write_encoder(tmp_path, "tiny-qwen3", "causal-lm")
    reader(model_max_length=24).save_pretrained(tmp_path)
    template = "{% if instruction %}w20 {{ instruction }} {% endif %}w21 {{ query }} w22 {{ document }} w23"
    numbers = {"logit_mean": 0.5, "logit_sigma": 4}
    asked = {"template": template, "true_token": "w30", "false_token": "w31", **numbers}
    (tmp_path / "score_template.json").write_text(json.dumps(asked))
    ask = {"query": QUERY, "documents": DOCUMENTS, "truncate": True}
    async with served(tmp_path) as calls:
        plain = await calls.ranking.Rerank(ranking_pb2.RerankRequest(**ask))
        told = await calls.ranking.Rerank(ranking_pb2.RerankRequest(**ask, instruction="w40 w41"))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    yes, no = tokenizer.convert_tokens_to_ids(["w30", "w31"])
    for reply, before in ((plain, ""), (told, "w20 w40 w41 ")):
        expected = []
        for document in DOCUMENTS:
            ids = tokenizer(f"{before}w21 {QUERY} w22 {document} w23", add_special_tokens=False)["input_ids"]
            with torch.inference_mode():
                logits = model(torch.tensor([ids if len(ids) <= 24 else [*ids[:23], ids[-1]]])).logits[0, -1]
            expected.append((float(logits[yes] - logits[no]) - 0.5) / 4)
        raw, scores = ({each.index: getattr(each, name) for each in reply.results} for name in ("logit", "score"))
        near(np.array([raw[index] for index in range(len(DOCUMENTS))]), np.array(expected))
        near(np.array([scores[index] for index in range(len(DOCUMENTS))]), 1 / (1 + np.exp(-np.array(expected))))


CHATML = "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }} <|im_end|> {% endfor %}"


@pytest.mark.parametrize("labels", [1, 3])
async def test_a_causal_classifier_with_a_chat_template_reads_single_texts_plain(tmp_path: Path, labels: int) -> None:
    """As transformers' pipeline does, activated as there and raw; pairs go through the template as before."""
    write_encoder(tmp_path / "model", "tiny-qwen3", "sequence-classification", labels)
    reader(chat_template=CHATML, padding_side="left").save_pretrained(tmp_path / "model")
    oracle = pipeline("text-classification", str(tmp_path / "model"), device="cpu", top_k=None)
    pairs = CrossEncoder(str(tmp_path / "model"), device="cpu", activation_fn=torch.nn.Identity())
    async with served(tmp_path / "model") as calls:
        plain, raw, asked = [
            await calls.classification.Classify(classification_pb2.ClassifyRequest(texts=TEXTS, **options))
            for options in ({}, {"normalize": False}, {"text_pairs": DOCUMENTS[::-1], "normalize": False})
        ]
    for reply, function in ((plain, None), (raw, "none")):
        found = oracle(TEXTS, function_to_apply=function)
        expected = [
            [{each["label"]: each["score"] for each in text}[label] for label in reply.labels] for text in found
        ]
        near(np.reshape(reply.scores, (-1, labels)), np.array(expected))
    both = list(zip(TEXTS, DOCUMENTS[::-1], strict=True))
    near(np.reshape(asked.scores, (-1, labels)), pairs.predict(both).reshape(-1, labels))


async def test_labels_of_tokens(tmp_path: Path) -> None:
    """Softmax over every token, its place in the text, and only the tokens of one id."""
    model = write_encoder(tmp_path / "tagger", "tiny-bert", "token-classification", 4)
    tokenizer = reader()
    async with served(tmp_path / "tagger") as calls:
        every = await calls.classification.ClassifyTokens(classification_pb2.ClassifyTokensRequest(texts=TEXTS))
        mark = tokenizer.convert_tokens_to_ids("w7")
        request = classification_pb2.ClassifyTokensRequest(texts=TEXTS, token_id=mark, normalize=False)
        steps = await calls.classification.ClassifyTokens(request)
    logits, ids = [], []
    for text in TEXTS:
        encoded = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        with torch.inference_mode():
            logits.append(model(**encoded).logits[0])
        ids.append(encoded["input_ids"][0].tolist())
    near(np.reshape(every.scores, (-1, 4)), torch.cat(logits).softmax(dim=1).numpy())
    assert list(every.token_ids) == [each for text in ids for each in text]
    assert list(every.lengths) == [len(each) for each in ids]
    assert (every.starts[2], every.ends[2]) == (3, 5)  # w2
    tagged = zip([each for text in ids for each in text], torch.cat(logits), strict=True)
    chosen = [row for each, row in tagged if each == mark]
    assert sum(steps.lengths) == len(chosen) == 2
    near(np.reshape(steps.scores, (-1, 4)), torch.stack(chosen).numpy())

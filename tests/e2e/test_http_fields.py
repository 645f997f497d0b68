"""Fields of OpenAI's and vLLM's requests over HTTP, against sentence-transformers set up by hand to the same."""

import base64
from pathlib import Path

import aiohttp
import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.util import quantize_embeddings

from harness.stack import Stack, stack
from support.http_calls import APIS, Http
from support.references import near, words
from support.tiny import reader, write_encoder

TEXTS = ["a small cat", "an even smaller dog", words(100, seed=1)]
QUERY, DOCUMENTS = "w4 w5 w6", ["w1 w2 w3", "w7", "w9 w8 w7 w6 w1"]


@pytest.fixture
def http(pair: Stack, session: aiohttp.ClientSession) -> Http:
    return Http(pair.frontends[0].http_url, session)


async def test_rows_as_the_model_gives_them(http: Http, oracle: SentenceTransformer) -> None:
    """Without the last module, which gives them unit length; by every path and both names of the field."""
    pooled = SentenceTransformer(modules=list(oracle)[:2], device="cpu").encode(TEXTS)
    assert abs(np.linalg.norm(pooled, axis=1) - 1).min() > 0.4
    for path, field in (("/v1/embeddings", "embedding"), ("/embeddings", "embedding"), ("/pooling", "data")):
        for name in ("use_activation", "normalize"):
            near(await http.rows(path, field, {"input": TEXTS, name: False}), pooled, 1e-5)
    near(await http.rows("/v1/embeddings", "embedding", {"input": TEXTS, "use_activation": True}), oracle.encode(TEXTS))


@pytest.mark.parametrize("side", ["left", "right"])
async def test_long_texts_are_cut_on_the_side_asked_for(http: Http, oracle: SentenceTransformer, side: str) -> None:
    body = {"input": TEXTS, "truncate_prompt_tokens": 16, "truncation_side": side}
    tokenizer, longest = oracle.tokenizer, oracle.max_seq_length
    own = tokenizer.truncation_side
    try:
        oracle.max_seq_length, tokenizer.truncation_side = 16, side
        expected = oracle.encode(TEXTS)
    finally:
        oracle.max_seq_length, tokenizer.truncation_side = longest, own
    near(await http.rows("/v1/embeddings", "embedding", body), expected)


@pytest.mark.parametrize("output_dtype", ["float", "binary", "ubinary"])
async def test_vectors_by_the_words_of_voyage(http: Http, oracle: SentenceTransformer, output_dtype: str) -> None:
    """As numbers, and as its client asks: base64 of int8 or uint8 where they are bits."""
    body = {"input": TEXTS, "truncation": True, "output_dimension": 32, "output_dtype": output_dtype}
    expected = oracle.encode(TEXTS, truncate_dim=32, normalize_embeddings=True)
    kind = np.dtype({"float": "<f4", "binary": "i1", "ubinary": "u1"}[output_dtype])
    if output_dtype != "float":
        expected = quantize_embeddings(expected, output_dtype)
    near(await http.rows("/v1/embeddings", "embedding", body), expected)
    told = (await http.ask("/v1/embeddings", body | {"encoding_format": "base64"}))["data"]
    near(np.stack([np.frombuffer(base64.b64decode(entry["embedding"]), dtype=kind) for entry in told]), expected)


async def test_tokens_by_the_words_of_vllm(http: Http, oracle: SentenceTransformer) -> None:
    for text, special in (
        (TEXTS[0], True),
        (TEXTS[1], False),
        ("a [SEP] small cat", False),
        (words(900, seed=2), True),
    ):
        ids = oracle.tokenizer(text, add_special_tokens=special)["input_ids"]
        told = await http.ask("/tokenize", {"prompt": text, "add_special_tokens": special, "return_token_strs": True})
        assert (told["count"], told["tokens"]) == (len(ids), ids)
        assert told["token_strs"] == oracle.tokenizer.convert_ids_to_tokens(ids)
        assert (await http.ask("/detokenize", {"tokens": ids}))["prompt"] == oracle.tokenizer.decode(ids)


async def test_logits_of_a_cross_encoder(tmp_path: Path, session: aiohttp.ClientSession) -> None:
    """Every pair of names gives them, and so do the older names of the field."""
    write_encoder(tmp_path / "encoder", "tiny-bert", "sequence-classification", 1)
    reader().save_pretrained(tmp_path / "encoder")
    oracle = CrossEncoder(str(tmp_path / "encoder"), device="cpu", max_length=64)
    oracle.save(str(tmp_path / "saved"), create_model_card=False)
    pairs = [(QUERY, document) for document in DOCUMENTS]
    logits, scores = oracle.predict(pairs, activation_fn=torch.nn.Identity()), oracle.predict(pairs)
    async with stack(str(tmp_path / "saved"), frontend=APIS) as running:
        http = Http(running.frontends[0].http_url, session)
        for first, second in (
            ("text_1", "text_2"),
            ("data_1", "data_2"),
            ("queries", "documents"),
            ("queries", "items"),
        ):
            body = {first: QUERY, second: DOCUMENTS}
            near(await http.rows("/score", "score", body), scores)
            for name in ("use_activation", "softmax", "activation"):
                near(await http.rows("/score", "score", body | {name: False}), logits)
        results = (
            await http.ask("/v1/rerank", {"query": QUERY, "documents": DOCUMENTS, "use_activation": False, "top_n": 0})
        )["results"]
    order = np.argsort(-logits, kind="stable")
    assert [result["index"] for result in results] == order.tolist()
    near([result["relevance_score"] for result in results], logits[order])

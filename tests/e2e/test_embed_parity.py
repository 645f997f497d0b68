"""Vectors through both services equal sentence-transformers' own."""

import asyncio
import random

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from harness.stack import stack
from selvage.v1 import embedding_pb2 as pb
from selvage.v1 import model_pb2
from selvage.v1 import vectors_pb2 as v
from support.references import Calls, dense, multi_vectors, words

TEXTS = [words(1 + index * 599 // 11, seed=index) for index in range(12)] + [""]
SHORT = [words(1 + index * 11, seed=index) for index in range(9)]


@pytest.fixture(scope="module")
async def shipped(calls: Calls) -> np.ndarray:
    return dense(await calls.embedding.Embed(pb.EmbedRequest(texts=TEXTS, truncate=True), timeout=120))


async def test_texts_of_1_to_600_tokens_equal_sentence_transformers(
    shipped: np.ndarray, oracle: SentenceTransformer
) -> None:
    """One Embed of texts around and far over the limit, cut as shipped at 256 tokens."""
    assert np.abs(shipped - oracle.encode(TEXTS)).max() < 1e-5


@pytest.mark.slow
async def test_512_tokens_equal_sentence_transformers(oracle: SentenceTransformer) -> None:
    """With --max-tokens 512 positions are used to the end; in bfloat16 the cosine of every row is at least 0.999."""
    oracle.max_seq_length = 512
    try:
        expected = oracle.encode(TEXTS)
    finally:
        oracle.max_seq_length = 256
    request = pb.EmbedRequest(texts=TEXTS, truncate=True)
    async with stack("minilm", worker={"max-tokens": 512}) as pair:
        response = await Calls(pair.channel).embedding.Embed(request, timeout=120)
    assert max(response.usage.token_counts) == 512
    assert np.abs(dense(response) - expected).max() < 1e-5
    async with stack("minilm", worker={"max-tokens": 512, "dtype": "bfloat16"}) as pair:
        response = await Calls(pair.channel).embedding.Embed(request, timeout=120)
    assert (dense(response) * expected).sum(axis=1).min() > 0.999


async def test_a_row_does_not_depend_on_its_batch_mates(shipped: np.ndarray, calls: Calls) -> None:
    """Alone, shuffled and in other batch sizes every row is the same."""
    order = list(range(len(TEXTS)))
    random.Random(7).shuffle(order)
    shuffled = dense(
        await calls.embedding.Embed(pb.EmbedRequest(texts=[TEXTS[i] for i in order], truncate=True), timeout=120)
    )
    assert np.abs(shuffled - shipped[order]).max() < 1e-6
    for size in (1, 3, 11):
        for start in range(0, len(TEXTS), 2 * size):
            request = pb.EmbedRequest(texts=TEXTS[start : start + size], truncate=True)
            rows = dense(await calls.embedding.Embed(request))
            assert np.abs(rows - shipped[start : start + size]).max() < 1e-6


async def test_token_ids_equal_their_text(calls: Calls) -> None:
    text = words(20, 4)
    tokenized = await calls.model.Tokenize(model_pb2.TokenizeRequest(texts=[text]))
    ids = pb.TokenIds(ids=tokenized.texts[0].ids)
    by_ids = await calls.embedding.Embed(pb.EmbedRequest(tokenized=[ids]))
    by_text = await calls.embedding.Embed(pb.EmbedRequest(texts=[text]))
    assert by_ids.dense.data == by_text.dense.data
    back = await calls.model.Detokenize(model_pb2.DetokenizeRequest(tokenized=[ids], skip_special_tokens=True))
    assert list(back.texts) == [text]


async def test_matryoshka_dimensions_are_cut_and_normalised_again(calls: Calls, oracle: SentenceTransformer) -> None:
    """Different dimensions in flight at once, each equal to sentence-transformers' truncation."""
    texts, widths = SHORT, (1, 64, 383, 384)
    requests = [pb.EmbedRequest(texts=texts, dimensions=dimensions) for dimensions in widths]
    responses = await asyncio.gather(*(calls.embedding.Embed(request) for request in requests))
    for dimensions, response in zip(widths, responses, strict=True):
        expected = oracle.encode(texts, truncate_dim=dimensions, normalize_embeddings=True)
        assert np.abs(dense(response) - expected).max() < 1e-5


async def test_raw_rows_where_normalising_is_switched_off(calls: Calls, oracle: SentenceTransformer) -> None:
    """normalize = false gives the mean of the hidden states."""
    rows = dense(await calls.embedding.Embed(pb.EmbedRequest(texts=SHORT[:5], normalize=False)))
    with torch.inference_mode():
        features = oracle[1](oracle[0](oracle.preprocess(SHORT[:5])))
    assert np.abs(rows - features["sentence_embedding"].numpy()).max() < 1e-5


async def test_multi_vectors_are_the_normalised_token_rows(calls: Calls, oracle: SentenceTransformer) -> None:
    """Every token's row, special tokens included, with ids; beside dense rows from the same call."""
    texts = [words(3, 5), "", words(40, 6)]
    request = pb.EmbedRequest(
        texts=texts, outputs=[v.OUTPUT_KIND_DENSE, v.OUTPUT_KIND_MULTI_VECTOR], return_token_ids=True
    )
    response = await calls.embedding.Embed(request)
    expected = [
        torch.nn.functional.normalize(each, dim=1).numpy()
        for each in oracle.encode(texts, output_value="token_embeddings")
    ]
    assert list(response.multi_vector.lengths) == [len(each) for each in expected] == [5, 2, 42]
    for ours, theirs in zip(multi_vectors(response), expected, strict=True):
        assert np.abs(ours - theirs).max() < 1e-5
    assert list(response.multi_vector.token_ids[5:7]) == [101, 102]
    assert np.abs(dense(response) - oracle.encode(texts)).max() < 1e-5


async def test_the_card_tells_limits_and_methods(calls: Calls) -> None:
    model = await calls.model.GetModel(model_pb2.GetModelRequest(model="all-MiniLM-L6-v2"))
    assert [model.card] == list((await calls.model.ListModels(model_pb2.ListModelsRequest())).cards)
    assert (model.card.dimensions, model.card.max_tokens, model.card.pooling) == (384, 256, "mean")
    assert (model.limits.texts, model.limits.queued_tokens) == (4096, 8_388_608)
    assert len(model.card.fingerprint) == 64

"""Repositories that sentence-transformers wrote, served by both services and compared with itself, text by text."""

from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from sentence_transformers import MultiVectorEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling, MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.sparse_encoder.modules import SpladePooling
from tokenizers.processors import TemplateProcessing

from selvage.v1 import embedding_pb2, model_pb2, ranking_pb2, vectors_pb2
from support import bge_m3
from support.references import dense, multi_vectors, near, refusal, sparse_rows
from support.served import served
from support.tiny import reader, write_encoder

TEXTS = ["w1 w2 w3", "w7", "", "w5 " * 60, "some other words", "w9 w8 w7 w6 w1"]
QUERY, DOCUMENTS = "w4 w5 w6", TEXTS
DENSE, SPARSE, MULTI = (
    vectors_pb2.OUTPUT_KIND_DENSE,
    vectors_pb2.OUTPUT_KIND_SPARSE,
    vectors_pb2.OUTPUT_KIND_MULTI_VECTOR,
)


ALL_MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")


async def test_dense(tmp_path: Path) -> None:
    """Every pooling and a layer behind them; with a prompt that pooling leaves out and without."""
    torch.manual_seed(0)
    write_encoder(tmp_path / "encoder", "tiny-bert")
    pooling = Pooling(64, ALL_MODES, include_prompt=False)
    layer = Dense(64 * len(ALL_MODES), 96, activation_function=torch.nn.GELU())
    modules = [Transformer(str(tmp_path / "encoder")), pooling, layer]
    oracle = SentenceTransformer(modules=modules, device="cpu", prompts={"query": "w11 w12 w13 "})
    oracle.save(str(tmp_path / "saved"), create_model_card=False)
    async with served(tmp_path / "saved") as calls:
        plain = await calls.embedding.Embed(embedding_pb2.EmbedRequest(texts=TEXTS))
        asked = await calls.embedding.Embed(embedding_pb2.EmbedRequest(texts=TEXTS[:2], prompt_name="query"))
    near(dense(plain), oracle.encode(TEXTS))
    near(dense(asked), oracle.encode(TEXTS[:2], prompt_name="query"))


async def test_last_token_with_an_end_token_and_an_instruction(tmp_path: Path) -> None:
    """As Qwen3-Embedding is on disk: a template that ends each text, a prompt for queries only, unit rows."""
    write_encoder(tmp_path / "encoder", "tiny-qwen3")
    tokenizer = reader(padding_side="left")
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A [SEP]", special_tokens=[("[SEP]", 3)])
    tokenizer.save_pretrained(tmp_path / "encoder")
    modules = [Transformer(str(tmp_path / "encoder")), Pooling(64, "lasttoken"), Normalize()]
    prompts = {"query": "w31 w32 w33 ", "document": ""}
    oracle = SentenceTransformer(modules=modules, device="cpu", prompts=prompts)
    oracle.save(str(tmp_path / "saved"), create_model_card=False)
    async with served(tmp_path / "saved") as calls:
        texts = [text for text in TEXTS if text]
        kinds = {"encode_query": vectors_pb2.INPUT_TYPE_QUERY, "encode_document": vectors_pb2.INPUT_TYPE_DOCUMENT}
        found = {
            name: dense(await calls.embedding.Embed(embedding_pb2.EmbedRequest(texts=texts, input_type=kind)))
            for name, kind in kinds.items()
        }
        shown = await calls.model.Tokenize(model_pb2.TokenizeRequest(texts=["w1"], input_type=kinds["encode_query"]))
    assert list(shown.texts[0].tokens) == ["w31", "w32", "w33", "w1", "[SEP]"]
    for name, rows in found.items():
        near(rows, getattr(oracle, name)(texts), 1e-5)


@pytest.mark.parametrize(("strategy", "activation"), [("max", "relu"), ("sum", "log1p_relu")])
async def test_sparse(tmp_path: Path, strategy: Any, activation: Any) -> None:
    write_encoder(tmp_path / "encoder", "tiny-bert", "masked-lm")
    modules = [
        Transformer(str(tmp_path / "encoder"), transformer_task="fill-mask"),
        SpladePooling(strategy, activation_function=activation),
    ]
    oracle = SparseEncoder(modules=modules, device="cpu")
    oracle.save(str(tmp_path / "saved"), create_model_card=False)
    async with served(tmp_path / "saved") as calls:
        card = (await calls.model.GetModel(model_pb2.GetModelRequest())).card
        full = await calls.embedding.Embed(embedding_pb2.EmbedRequest(texts=TEXTS))
        top = await calls.embedding.Embed(embedding_pb2.EmbedRequest(texts=TEXTS, outputs=[SPARSE], sparse_top_k=9))
        scores = await calls.ranking.Score(ranking_pb2.ScoreRequest(queries=[QUERY, "w1"], documents=DOCUMENTS))
    assert list(card.outputs) == [SPARSE]
    assert card.sparse_head == "splade"
    expected = oracle.encode(TEXTS, convert_to_sparse_tensor=False).numpy()
    near(sparse_rows(full, 1000), expected)
    near(sparse_rows(top, 1000), oracle.encode(TEXTS, convert_to_sparse_tensor=False, max_active_dims=9).numpy())
    assert list(top.sparse.lengths) == [9] * len(TEXTS)
    queries = oracle.encode([QUERY, "w1"], convert_to_sparse_tensor=False).numpy()
    near(np.reshape(scores.scores, (2, -1)), queries @ expected.T, 1e-4)


async def test_multi_vectors(tmp_path: Path) -> None:
    """Rows of a native MultiVectorEncoder with two layers, pooled ones too, ids and scores."""
    torch.manual_seed(0)
    write_encoder(tmp_path / "encoder", "tiny-bert")
    layers = [
        Dense(64, 64, activation_function=torch.nn.Tanh(), module_input_name="token_embeddings", use_residual=True),
        Dense(64, 48, bias=False, activation_function=None, module_input_name="token_embeddings"),
    ]
    modules = [
        Transformer(str(tmp_path / "encoder")),
        *layers,
        MultiVectorMask(),
        Normalize(module_input_name="token_embeddings"),
    ]
    oracle = MultiVectorEncoder(modules=modules, device="cpu")
    oracle.save(str(tmp_path / "saved"), create_model_card=False)
    async with served(tmp_path / "saved") as calls:
        request = embedding_pb2.EmbedRequest(texts=TEXTS, return_token_ids=True)
        reply = await calls.embedding.Embed(request)
        pooled = {
            normalize: await calls.embedding.Embed(
                embedding_pb2.EmbedRequest(texts=TEXTS, pool_factor=2, normalize=normalize)
            )
            for normalize in (True, False)
        }
        scores = await calls.ranking.Score(ranking_pb2.ScoreRequest(queries=[QUERY], documents=DOCUMENTS))
    for normalize, fewer in pooled.items():
        pooling = HierarchicalTokenPooling(2.0, normalize_embeddings=normalize)
        means = oracle.encode_document(TEXTS, convert_to_numpy=True, token_pooling=pooling)
        assert list(fewer.multi_vector.lengths) == [len(each) for each in means]
        near(np.concatenate(multi_vectors(fewer)), np.concatenate(means), 1e-5)
    expected = oracle.encode_document(TEXTS, convert_to_numpy=True)
    ours = multi_vectors(reply)
    assert [len(each) for each in ours] == [len(each) for each in expected]
    near(np.concatenate(ours), np.concatenate(expected), 1e-5)
    ids = [oracle.tokenizer(text)["input_ids"] for text in TEXTS]
    assert list(reply.multi_vector.token_ids) == [each for text in ids for each in text]
    query = oracle.encode_query([QUERY], convert_to_numpy=True)
    near(np.array(scores.scores), np.asarray(oracle.similarity(query, expected))[0], 1e-4)


@pytest.mark.parametrize("normalize", [True, False])
async def test_multi_vectors_of_which_a_module_pools_those_of_documents(tmp_path: Path, normalize: bool) -> None:
    """Rows and scores as the model's files say, and as a request says that pools otherwise, or not at all."""
    torch.manual_seed(0)
    write_encoder(tmp_path / "encoder", "tiny-bert")
    modules = [
        Transformer(str(tmp_path / "encoder")),
        Dense(64, 48, bias=False, activation_function=None, module_input_name="token_embeddings"),
        MultiVectorMask(),
        Normalize(module_input_name="token_embeddings"),
    ]
    pooling = HierarchicalTokenPooling(3.0, num_protected_tokens=2, normalize_embeddings=normalize)
    plain = MultiVectorEncoder(modules=modules, device="cpu")
    oracle = MultiVectorEncoder(modules=[*modules, pooling], device="cpu")
    oracle.save(str(tmp_path / "saved"), create_model_card=False)
    async with served(tmp_path / "saved") as calls:
        card = (await calls.model.GetModel(model_pb2.GetModelRequest())).card
        found = {
            kind: await calls.embedding.Embed(embedding_pb2.EmbedRequest(texts=TEXTS, input_type=kind))
            for kind in (vectors_pb2.INPUT_TYPE_QUERY, vectors_pb2.INPUT_TYPE_DOCUMENT)
        }
        scores = {
            factor: await calls.ranking.Score(
                ranking_pb2.ScoreRequest(queries=[QUERY, "w1"], documents=DOCUMENTS, pool_factor=factor)
            )
            for factor in (None, 2, 1)
        }
        ranked = await calls.ranking.Rerank(ranking_pb2.RerankRequest(query=QUERY, documents=DOCUMENTS))
        asked = ranking_pb2.RerankRequest(query=QUERY, documents=DOCUMENTS, explain=True)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await calls.ranking.Rerank(asked)
        asked.pool_factor = 1
        explained = await calls.ranking.Rerank(asked)
    assert card.token_pooling == model_pb2.TokenPooling(pool_factor=3, protected_tokens=2, normalize=normalize)
    for kind, encode in zip(found, (oracle.encode_query, oracle.encode_document), strict=True):
        expected = encode(TEXTS, convert_to_numpy=True)
        assert list(found[kind].multi_vector.lengths) == [len(rows) for rows in expected]
        near(np.concatenate(multi_vectors(found[kind])), np.concatenate(expected), 1e-5)
    query = oracle.encode_query([QUERY, "w1"], convert_to_numpy=True)
    twice = HierarchicalTokenPooling(2.0)
    for factor, documents in (
        (None, oracle.encode_document(DOCUMENTS, convert_to_numpy=True)),
        (2, plain.encode_document(DOCUMENTS, convert_to_numpy=True, token_pooling=twice)),
        (1, plain.encode_document(DOCUMENTS, convert_to_numpy=True)),
    ):
        expected = np.asarray(oracle.similarity(query, documents))
        near(np.reshape(scores[factor].scores, (2, -1)), expected, 1e-4)
    best = np.argsort(-np.reshape(scores[None].scores, (2, -1))[0], kind="stable")
    assert [result.index for result in ranked.results] == best.tolist()
    assert refusal(raised.value)[1:] == ("INVALID_INPUT", "explain")
    assert all(result.explanation for result in explained.results)


async def test_bge_m3(tmp_path: Path) -> None:
    """Three outputs of one pass with their ids, and every score, against the paper written out."""
    paper = bge_m3.write(tmp_path)
    tokenizer = reader()
    known = [paper.of(tokenizer(text)["input_ids"]) for text in TEXTS]
    asked = paper.of(tokenizer(QUERY)["input_ids"])
    async with served(tmp_path) as calls:
        request = embedding_pb2.EmbedRequest(texts=TEXTS, outputs=[DENSE, SPARSE, MULTI], return_token_ids=True)
        reply = await calls.embedding.Embed(request)
        card = (await calls.model.GetModel(model_pb2.GetModelRequest())).card
        scores = {}
        for method in (*card.methods, vectors_pb2.SCORING_METHOD_UNSPECIFIED):
            hybrid = method == vectors_pb2.SCORING_METHOD_HYBRID
            weights = ranking_pb2.HybridWeights(dense=0.4, sparse=0.2, multi_vector=0.4) if hybrid else None
            request = ranking_pb2.ScoreRequest(queries=[QUERY], documents=TEXTS, method=method, weights=weights)
            scores[method] = (await calls.ranking.Score(request)).scores
    near(dense(reply), torch.stack([each["dense"] for each in known]).numpy())
    near(np.concatenate(multi_vectors(reply)), torch.cat([each["tokens"] for each in known]).numpy())
    ids = [tokenizer(text)["input_ids"][1:] for text in TEXTS]
    assert list(reply.multi_vector.token_ids) == [each for text in ids for each in text]
    weights = [sorted(each["sparse"].items()) for each in known]
    assert list(reply.sparse.indices) == [identity for text in weights for identity, weight in text if weight > 0]
    near(np.array(reply.sparse.values), [weight for text in weights for _, weight in text if weight > 0])
    expected = [paper.score(asked, each) for each in known]
    for method in card.methods:
        near(np.array(scores[method]), [each[method] for each in expected], 1e-4)
    assert len(card.methods) == 4
    assert scores[vectors_pb2.SCORING_METHOD_UNSPECIFIED] == scores[vectors_pb2.SCORING_METHOD_LATE_INTERACTION]

"""Late interaction through both services equals sentence-transformers on every form on disk, in mixed company."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sentence_transformers import MultiVectorEncoder

from harness.stack import stack
from selvage.v1 import embedding_pb2, model_pb2, ranking_pb2, vectors_pb2
from support.late_forms import write_native, write_pylate, write_stanford
from support.random_models import random_model
from support.references import Calls, multi_vectors, near, packed
from support.scraping import forget_peak, memory
from support.served import served
from support.tiny import write_encoder

QUERIES = ["w1 w2, w3!", "w7", "", "w5 " * 40, "w9 w8. w7 w6 w1"]
DOCUMENTS = ["w1 w2 w3.", "w7 ; w7", "", "...", "w5 w6 - " * 60, "w4 w2 w9, w1 w1", "w3"]
QUERY, DOCUMENT = vectors_pb2.INPUT_TYPE_QUERY, vectors_pb2.INPUT_TYPE_DOCUMENT
MULTI, LATE = vectors_pb2.OUTPUT_KIND_MULTI_VECTOR, vectors_pb2.SCORING_METHOD_LATE_INTERACTION
PREFIXES = {"query_prefix": "[Q] ", "document_prefix": "[D] "}


def stanford(folder: Path, encoder: Path) -> None:
    """Fixed, nobody attends to the expansion, punctuation skipped."""
    write_stanford(folder, encoder, {"query_maxlen": 24, "doc_maxlen": 40})


def pylate(folder: Path, encoder: Path) -> None:
    """Fixed and attended, markers that are added tokens, mean scores."""
    described = PREFIXES | {"model_type": "ColBERT", "query_length": 20, "document_length": 50}
    described |= {"attend_to_expansion_tokens": True, "similarity_fn_name": "meanmaxsim"}
    write_pylate(folder, encoder, described)


def native(folder: Path, encoder: Path) -> None:
    """At least so many tokens, unattended, a skiplist for both sides, rows that are not normalised."""
    expansion = {"strategy": "min", "length": 8, "attend": False}
    mask = {"skiplist_words": [",", "w2"], "skiplist_tasks": ["query", "document"]}
    write_native(folder, encoder, mask, unit=False, query_length=30, document_length=45, query_expansion=expansion)


@pytest.mark.parametrize("form", [stanford, pylate, native])
async def test_equal_to_the_oracle(tmp_path: Path, form: Callable[[Path, Path], None]) -> None:
    """Ids, row counts, rows whole and cut, scores of all layouts, explanations, texts against given documents."""
    write_encoder(tmp_path / "encoder", "tiny-modernbert" if form is native else "tiny-bert")
    form(tmp_path / "model", tmp_path / "encoder")
    oracle = MultiVectorEncoder(str(tmp_path / "model"), device="cpu")
    queries = [oracle.encode_query(text, convert_to_numpy=True) for text in QUERIES]
    documents = [oracle.encode_document(text, convert_to_numpy=True) for text in DOCUMENTS]
    table = np.asarray(oracle.similarity(queries, documents))
    async with served(tmp_path / "model") as calls:
        answers = await ask(calls, documents)
    features = [oracle.preprocess([text], prompt=oracle.prompts.get("query"), task="query") for text in QUERIES]
    assert [list(text.ids) for text in answers.shown.texts] == [each["input_ids"][0].tolist() for each in features]
    rows_are(answers, queries, documents, unit=form is not native)
    near(np.reshape(answers.matrix.scores, table.shape), table, 1e-4)
    near(np.reshape(answers.mixed.scores, table.shape), table, 1e-4)
    near(np.array(answers.pairs.scores), np.diag(table[:, :5]), 1e-4)
    ranked_and_explained(answers, queries[0], documents, table[0])


async def ask(calls: Calls, documents: list[np.ndarray]) -> SimpleNamespace:
    """Every rpc's reply; `documents` are the rows that MaxSim is given. At once, so that jobs may share steps."""
    asked, found, matrix, pairs, ranked, shown, read = await asyncio.gather(
        calls.embedding.Embed(embed(QUERIES, QUERY)),
        calls.embedding.Embed(embed(DOCUMENTS, DOCUMENT)),
        calls.ranking.Score(ranking_pb2.ScoreRequest(queries=QUERIES, documents=DOCUMENTS, truncate=True)),
        calls.ranking.Score(
            ranking_pb2.ScoreRequest(
                queries=QUERIES, documents=DOCUMENTS[:5], truncate=True, layout=vectors_pb2.LAYOUT_PAIRS
            )
        ),
        calls.ranking.Rerank(
            ranking_pb2.RerankRequest(
                query=QUERIES[0],
                documents=DOCUMENTS,
                truncate=True,
                top_n=3,
                return_documents=True,
                explain=True,
                method=LATE,
            )
        ),
        calls.model.Tokenize(model_pb2.TokenizeRequest(texts=QUERIES, input_type=QUERY, truncate=True)),
        calls.model.Tokenize(model_pb2.TokenizeRequest(texts=DOCUMENTS, input_type=DOCUMENT, truncate=True)),
    )
    # Ids as they were shown are fed as they are.
    again = embedding_pb2.EmbedRequest(input_type=QUERY, outputs=[MULTI])
    for text in shown.texts:
        again.tokenized.add(ids=text.ids)
    given = vectors_pb2.MultiVectors(
        data_type=vectors_pb2.DATA_TYPE_FLOAT32,
        dimensions=documents[0].shape[1],
        lengths=[len(each) for each in documents],
        data=packed(documents),
    )
    mixed = ranking_pb2.MaxSimRequest(query_texts=QUERIES, documents=given, truncate=True)
    return SimpleNamespace(
        asked=asked,
        found=found,
        matrix=matrix,
        pairs=pairs,
        ranked=ranked,
        shown=shown,
        read=read,
        fed=await calls.embedding.Embed(again),
        cut=await calls.embedding.Embed(embed(DOCUMENTS, DOCUMENT, dimensions=20)),
        mixed=await calls.ranking.MaxSim(mixed),
        card=(await calls.model.GetModel(model_pb2.GetModelRequest())).card,
    )


def rows_are(answers: SimpleNamespace, queries: list[np.ndarray], documents: list[np.ndarray], unit: bool) -> None:
    """From texts, from ids, and cut to fewer dimensions; `unit`: rows have unit length."""
    for ours, expected in ((answers.asked, queries), (answers.found, documents), (answers.fed, queries)):
        rows = multi_vectors(ours)
        assert [len(each) for each in rows] == [len(each) for each in expected]
        near(np.concatenate(rows), np.concatenate(expected), 1e-5)
    shorter = np.concatenate(documents)[:, :20]
    near(np.concatenate(multi_vectors(answers.cut)), normalized(shorter) if unit else shorter, 1e-5)


def ranked_and_explained(
    answers: SimpleNamespace, query: np.ndarray, documents: list[np.ndarray], scores: np.ndarray
) -> None:
    """The best three of the first query, their texts, scores and winners."""
    late = answers.card.late_interaction
    told = (late.skip_in_queries, late.skip_in_documents)
    skiplist = tuple(set(late.skiplist) if counts else set() for counts in told)
    order = np.argsort(-scores, kind="stable")[:3]
    assert [result.index for result in answers.ranked.results] == order.tolist()
    for result in answers.ranked.results:
        place = result.index
        assert result.document == DOCUMENTS[place]
        near([result.score], [scores[place]], 1e-4)
        explained(result, query, documents[place], answers.shown.texts[0], answers.read.texts[place], skiplist)


def explained(
    result: Any, query: np.ndarray, document: np.ndarray, asked: Any, found: Any, skiplist: tuple[set[int], set[int]]
) -> None:
    """A match a query row: its similarity is the row's largest product, its position that of the winner's token."""
    matches = result.explanation
    rows, columns = (
        [place for place, identity in enumerate(text.ids) if identity not in skipped]
        for text, skipped in zip((asked, found), skiplist, strict=True)
    )
    products = query @ document.T
    near([match.similarity for match in matches], products.max(axis=1), 1e-4)
    assert [match.query_token for match in matches] == [asked.tokens[place] for place in rows]
    won = [columns.index(match.document_position) for match in matches]
    near(products[np.arange(len(query)), won], products.max(axis=1), 1e-4)
    assert [match.document_token for match in matches] == [found.tokens[match.document_position] for match in matches]


def embed(texts: list[str], side: Any, **fields: Any) -> embedding_pb2.EmbedRequest:
    return embedding_pb2.EmbedRequest(texts=texts, input_type=side, truncate=True, outputs=[MULTI], **fields)


def normalized(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize(("documents", "mebibytes"), [(2000, 100), pytest.param(10_000, 300, marks=pytest.mark.slow)])
async def test_many_documents_stay_within_bounds(documents: int, mebibytes: int) -> None:
    """One rerank, then three at once: all answer, memory stays near that of idle, a small call overtakes them."""
    request = ranking_pb2.RerankRequest(
        query="w1 w2 w3",
        documents=[f"w{place % 300} w{place // 300} " + "w5 w6 " * 6 for place in range(documents)],
        top_n=5,
        method=LATE,
    )
    async with stack(random_model("tiny-colbert")) as pair:
        calls = Calls(pair.channel)
        await calls.ranking.Rerank(
            ranking_pb2.RerankRequest(query="w1", documents=request.documents[:300], method=LATE)
        )
        idle = memory(pair.worker, "VmRSS")
        forget_peak(pair.worker)
        alone = await calls.ranking.Rerank(request, timeout=120)
        three = [calls.ranking.Rerank(request, timeout=300) for _ in range(3)]
        small = await calls.embedding.Embed(embed(["w1"], DOCUMENT), timeout=240)
        assert not any(call.done() for call in three)
        replies = [await call for call in three]
        peak = memory(pair.worker, "VmHWM")
    assert small.multi_vector.lengths
    assert len(alone.results) == 5
    assert alone.usage.prompt_tokens > 15 * documents
    for reply in replies:
        assert [each.index for each in reply.results] == [each.index for each in alone.results]
        near([each.score for each in reply.results], [each.score for each in alone.results], 1e-5)
    assert peak - idle < mebibytes * 1024 * 1024

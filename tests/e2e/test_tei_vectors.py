"""Vectors by tei.v1 between real processes: those of selvage.v1, in the other contract's messages and order."""

from typing import Any

from harness.stack import Stack
from selvage.v1 import embedding_pb2
from support.references import Calls, dense, multi_vectors, near
from support.tei_calls import LEFT, LONG, PRECISE, TEXTS, Tei, all_of
from tei.v1 import tei_pb2 as pb


async def test_dense_vectors_are_those_of_selvage(tiny: Stack) -> None:
    """Normalised unless told otherwise, cut, prompted, in as many dimensions as asked for."""
    tei, ours = Tei(tiny.channel), Calls(tiny.channel)
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {"normalize": True}),
        ({"normalize": False}, {"normalize": False}),
        ({"dimensions": 16}, {"dimensions": 16, "normalize": True}),
        ({"inputs": LONG, "truncate": True}, {"texts": [LONG], "truncate": True, "normalize": True}),
        (
            {"inputs": "w5 " + LONG + "w9", "truncate": True, "truncation_direction": LEFT, "normalize": False},
            {"texts": ["w5 " + LONG + "w9"], "truncate": True, "truncation_side": 2, "normalize": False},
        ),
        ({"prompt_name": "query"}, {"prompt_name": "query", "normalize": True}),
    ]
    for theirs, own in cases:
        reply = await tei.embed.Embed(pb.EmbedRequest(**({"inputs": TEXTS[3]} | theirs)))
        expected = await ours.embedding.Embed(embedding_pb2.EmbedRequest(**({"texts": [TEXTS[3]]} | own)))
        near(reply.embeddings, dense(expected)[0], PRECISE)
        assert reply.metadata.compute_tokens == expected.usage.prompt_tokens


async def test_a_stream_of_texts_is_one_embed(tiny: Stack) -> None:
    """In order, whatever groups they come in; options may change on the way."""
    tei, ours = Tei(tiny.channel), Calls(tiny.channel)
    replies = await all_of(tei.embed.EmbedStream(pb.EmbedRequest(inputs=text) for text in TEXTS))
    expected = dense(await ours.embedding.Embed(embedding_pb2.EmbedRequest(texts=TEXTS, normalize=True)))
    near([reply.embeddings for reply in replies], expected, PRECISE)
    widths = [8 if number % 5 == 0 else 16 for number in range(100)]
    mixed = await all_of(
        tei.embed.EmbedStream(
            pb.EmbedRequest(inputs=text, dimensions=width) for text, width in zip(TEXTS, widths, strict=False)
        )
    )
    assert [len(reply.embeddings) for reply in mixed] == widths


async def test_all_vectors_of_a_text(tiny: Stack) -> None:
    """Token rows as the model gives them, one by one and in a stream."""
    tei, ours = Tei(tiny.channel), Calls(tiny.channel)
    requests = [pb.EmbedAllRequest(inputs=text) for text in TEXTS[:60]]
    asked = embedding_pb2.EmbedRequest(texts=TEXTS[:60], outputs=[3], normalize=False)
    expected = multi_vectors(await ours.embedding.Embed(asked))
    for reply, rows in zip(await all_of(tei.embed.EmbedAllStream(iter(requests))), expected, strict=True):
        near([each.embeddings for each in reply.token_embeddings], rows, PRECISE)
    single = await tei.embed.EmbedAll(requests[7])
    near([each.embeddings for each in single.token_embeddings], expected[7], PRECISE)


async def test_sparse_vectors_are_those_of_selvage(splade: Stack) -> None:
    """Every weight, one by one and in a stream."""
    tei, ours = Tei(splade.channel), Calls(splade.channel)
    texts = TEXTS[:50]
    sparse = (await ours.embedding.Embed(embedding_pb2.EmbedRequest(texts=texts))).sparse
    replies = await all_of(tei.embed.EmbedSparseStream(pb.EmbedSparseRequest(inputs=text) for text in texts))
    assert [len(reply.sparse_embeddings) for reply in replies] == list(sparse.lengths)
    pairs = [(each.index, each.value) for reply in replies for each in reply.sparse_embeddings]
    assert [index for index, _ in pairs] == list(sparse.indices)
    near([value for _, value in pairs], sparse.values, 10 * PRECISE)  # raw rows
    single = await tei.embed.EmbedSparse(pb.EmbedSparseRequest(inputs=texts[9]))
    assert [each.index for each in single.sparse_embeddings] == [each.index for each in replies[9].sparse_embeddings]

"""tei.v1 between real processes: the numbers of selvage.v1 in the other contract's messages, order and words."""

import asyncio
from collections.abc import Iterable
from typing import Any

import grpc
import numpy as np
import pytest

from harness.stack import Stack
from selvage.v1 import classification_pb2, embedding_pb2, model_pb2, ranking_pb2
from support.references import LONGEST_WAIT, Calls, dense, multi_vectors, near, refusal
from tei.v1 import tei_pb2 as pb
from tei.v1 import tei_pb2_grpc

TEXTS = [f"w{number % 90} w{number * 7 % 90} " * (1 + number % 9) for number in range(300)]
LONG = "w1 " * 1000
PRECISE = 1e-6
LEFT = pb.TRUNCATION_DIRECTION_LEFT


class Tei:
    """The stubs of tei.v1 on one channel."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.info: Any = tei_pb2_grpc.InfoStub(channel)
        self.embed: Any = tei_pb2_grpc.EmbedStub(channel)
        self.predict: Any = tei_pb2_grpc.PredictStub(channel)
        self.rerank: Any = tei_pb2_grpc.RerankStub(channel)
        self.tokenize: Any = tei_pb2_grpc.TokenizeStub(channel)


async def told(awaited: Any) -> tuple[str, str, str]:
    """Status, reason and field of an error."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await awaited
    return refusal(raised.value)


async def all_of(stream: Any) -> list[Any]:
    return [reply async for reply in stream]


def scores(reply: Any) -> list[float]:
    return [each.score for each in reply.predictions]


def embeds(*texts: str) -> Iterable[pb.EmbedRequest]:
    return (pb.EmbedRequest(inputs=text) for text in texts)


async def test_dense_vectors_are_those_of_selvage(tiny: Stack) -> None:
    """Normalised unless told otherwise, cut, prompted, in as many dimensions as asked for."""
    tei, ours = Tei(tiny.channel), Calls(tiny.channel)
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {"normalize": True}),
        ({"normalize": False}, {"normalize": False}),
        ({"dimensions": 16}, {"dimensions": 16, "normalize": True}),
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
    replies = await all_of(tei.embed.EmbedStream(embeds(*TEXTS)))
    whole = dense(await ours.embedding.Embed(embedding_pb2.EmbedRequest(texts=TEXTS, normalize=True)))
    near([reply.embeddings for reply in replies], whole, PRECISE)


async def test_token_and_sparse_vectors_are_those_of_selvage(tiny: Stack, splade: Stack) -> None:
    """Rows as the model gives them, and every weight."""
    texts = TEXTS[:50]
    asked = embedding_pb2.EmbedRequest(texts=texts, outputs=[3], normalize=False)
    rows = multi_vectors(await Calls(tiny.channel).embedding.Embed(asked))
    requests = (pb.EmbedAllRequest(inputs=text) for text in texts)
    for reply, own in zip(await all_of(Tei(tiny.channel).embed.EmbedAllStream(requests)), rows, strict=True):
        near([each.embeddings for each in reply.token_embeddings], own, PRECISE)
    sparse = (await Calls(splade.channel).embedding.Embed(embedding_pb2.EmbedRequest(texts=texts))).sparse
    replies = await all_of(
        Tei(splade.channel).embed.EmbedSparseStream(pb.EmbedSparseRequest(inputs=text) for text in texts)
    )
    assert [len(reply.sparse_embeddings) for reply in replies] == list(sparse.lengths)
    pairs = [(each.index, each.value) for reply in replies for each in reply.sparse_embeddings]
    assert [index for index, _ in pairs] == list(sparse.indices)
    near([value for _, value in pairs], sparse.values, 10 * PRECISE)  # raw rows


async def test_labels_are_those_of_selvage(classifier: Stack) -> None:
    """Best first."""
    tei, ours = Tei(classifier.channel), Calls(classifier.channel)
    for raw in (False, True):
        asked = classification_pb2.ClassifyRequest(texts=TEXTS[:60], normalize=not raw)
        expected = await ours.classification.Classify(asked)
        rows = np.array(expected.scores).reshape(60, -1)
        requests = [pb.PredictRequest(inputs=text, raw_scores=raw) for text in TEXTS[:60]]
        for reply, row in zip(await all_of(tei.predict.PredictStream(iter(requests))), rows, strict=True):
            order = np.argsort(-row, kind="stable")
            assert [each.label for each in reply.predictions] == [expected.labels[place] for place in order]
            near(scores(reply), row[order], PRECISE)


async def test_pairs_are_those_of_selvage(cross: Stack) -> None:
    tei, ours = Tei(cross.channel), Calls(cross.channel)
    firsts, seconds = TEXTS[:80], TEXTS[80:160]
    asked = classification_pb2.ClassifyRequest(texts=firsts, text_pairs=seconds, normalize=True)
    expected = (await ours.classification.Classify(asked)).scores
    requests = [pb.PredictPairRequest(inputs=pair) for pair in zip(firsts, seconds, strict=True)]
    replies = await all_of(tei.predict.PredictPairStream(iter(requests)))
    near([scores(reply)[0] for reply in replies], expected, PRECISE)


@pytest.mark.parametrize("raw", [False, True])
async def test_ranks_are_those_of_selvage(cross: Stack, tiny: Stack, raw: bool) -> None:
    """Best first, with their texts; a stream of texts is answered once. A model without a cross-encoder ranks too."""
    texts = TEXTS[:70]
    for running, normalize in ((cross, {"normalize": not raw}), (tiny, {})):
        tei, ours = Tei(running.channel), Calls(running.channel)
        expected = await ours.ranking.Rerank(ranking_pb2.RerankRequest(query="w3", documents=texts, **normalize))
        reply = await tei.rerank.Rerank(pb.RerankRequest(query="w3", texts=texts, raw_scores=raw, return_text=True))
        messages = [pb.RerankStreamRequest(query="w3", text=text) for text in texts]
        messages[0].raw_scores, messages[0].return_text = raw, True
        streamed = await tei.rerank.RerankStream(iter(messages))
        for found in (reply, streamed):
            assert [rank.index for rank in found.ranks] == [result.index for result in expected.results]
            near([rank.score for rank in found.ranks], [result.score for result in expected.results], PRECISE)
            assert [rank.text for rank in found.ranks] == [texts[rank.index] for rank in found.ranks]
            assert found.metadata.compute_tokens == expected.usage.prompt_tokens


async def test_tokens_are_those_of_selvage(tiny: Stack) -> None:
    """Special ones where asked for, texts however long; and back again."""
    tei, ours = Tei(tiny.channel), Calls(tiny.channel)
    text = "w5  w77 w1"
    shown = (await ours.model.Tokenize(model_pb2.TokenizeRequest(texts=[text], prompt_name="query"))).texts[0]
    full = await tei.tokenize.Tokenize(pb.EncodeRequest(inputs=text, add_special_tokens=True, prompt_name="query"))
    bare = await tei.tokenize.Tokenize(pb.EncodeRequest(inputs=text, prompt_name="query"))
    assert [token.id for token in full.tokens] == list(shown.ids)
    assert [token.special for token in full.tokens] == list(shown.special)
    assert list(bare.tokens) == [token for token in full.tokens if not token.special]
    assert len((await tei.tokenize.Tokenize(pb.EncodeRequest(inputs=LONG))).tokens) == 1000
    streamed = await all_of(tei.tokenize.TokenizeStream(pb.EncodeRequest(inputs=each) for each in TEXTS))
    ids = [pb.DecodeRequest(ids=[token.id for token in reply.tokens], skip_special_tokens=True) for reply in streamed]
    decoded = await all_of(tei.tokenize.DecodeStream(iter(ids)))
    assert [reply.text for reply in decoded] == [each.strip() for each in TEXTS]


async def test_info_and_what_a_call_took(tiny: Stack, cross: Stack, classifier: Stack) -> None:
    """The model's card, and beside a reply its id, sizes and times."""
    found = await Tei(tiny.channel).info.Info(pb.InfoRequest())
    card = (await Calls(tiny.channel).model.GetModel(model_pb2.GetModelRequest())).card
    assert (found.model_id, found.model_dtype, found.max_input_length) == (card.id, card.dtype, card.max_tokens)
    assert (found.model_type, found.max_concurrent_requests) == (pb.MODEL_TYPE_EMBEDDING, 2048)
    for running, kind in ((cross, pb.MODEL_TYPE_RERANKER), (classifier, pb.MODEL_TYPE_CLASSIFIER)):
        assert (await Tei(running.channel).info.Info(pb.InfoRequest())).model_type == kind
    call = Tei(tiny.channel).embed.Embed(pb.EmbedRequest(inputs="w1 w2"), metadata=(("x-request-id", "mine-9"),))
    reply = await call
    assert dict(await call.trailing_metadata())["x-request-id"] == "mine-9"
    headers = dict(await call.initial_metadata())
    assert (headers["x-compute-tokens"], headers["x-compute-characters"]) == ("4", "5")
    assert int(headers["x-total-time"]) == reply.metadata.total_time_ns // 1_000_000
    assert reply.metadata.total_time_ns >= reply.metadata.inference_time_ns > 0


def until_refused(address: str, requests: Iterable[pb.EmbedRequest]) -> tuple[list[pb.EmbedResponse], Any]:
    """The answers of an EmbedStream, and the error that ended it. Blocks.

    Not over grpc.aio, whose client gives a call the status INTERNAL, instead of the service's own, where it writes
    while the call ends.
    """
    replies = list[pb.EmbedResponse]()
    with grpc.insecure_channel(address) as channel:
        answers = tei_pb2_grpc.EmbedStub(channel).EmbedStream(iter(requests), timeout=LONGEST_WAIT)
        with pytest.raises(grpc.RpcError) as raised:
            replies.extend(answers)
    return replies, raised.value


async def test_the_first_error_ends_a_stream_after_the_answers_before_it(tiny: Stack) -> None:
    """An empty text, and one that is too long behind it."""
    texts = [*TEXTS[:150], "", *TEXTS[151:], LONG]
    replies, error = await asyncio.to_thread(until_refused, tiny.frontends[0].address, embeds(*texts))
    assert len(replies) == 150
    assert refusal(error) == ("INVALID_ARGUMENT", "INVALID_INPUT", "inputs")
    assert error.details() == "Input validation error: inputs is empty"


async def test_bad_input_is_refused_in_the_words_of_the_contract(tiny: Stack, cross: Stack) -> None:
    """Status, reason and field of each. A stream that its first message ends has no other: a write
    may hide the status of an ended call."""
    tei, pairs = Tei(tiny.channel), Tei(cross.channel)
    invalid = [
        (tei.embed.Embed(pb.EmbedRequest()), "INVALID_INPUT", "inputs"),
        (tei.embed.Embed(pb.EmbedRequest(inputs=LONG)), "INPUT_TOO_LONG", "inputs"),
        (tei.embed.Embed(pb.EmbedRequest(inputs="w1", dimensions=65)), "UNSUPPORTED_DIMENSIONS", "dimensions"),
        (tei.rerank.Rerank(pb.RerankRequest(query="w1", texts=["w1", LONG])), "INPUT_TOO_LONG", "texts[1]"),
        (pairs.predict.PredictPair(pb.PredictPairRequest(inputs=["w1", LONG])), "INPUT_TOO_LONG", "inputs[1]"),
        (
            pairs.rerank.RerankStream(iter([pb.RerankStreamRequest(query=q, text="w1") for q in "ab"])),
            *("INVALID_INPUT", "query"),
        ),
    ]
    for call, reason, field in invalid:
        assert await told(call) == ("INVALID_ARGUMENT", reason, field)
    assert (await told(pairs.rerank.RerankStream(iter([]))))[0] == "INVALID_ARGUMENT"
    of_other_models = (
        tei.embed.EmbedSparse(pb.EmbedSparseRequest(inputs="w1")),
        tei.predict.Predict(pb.PredictRequest(inputs="w1")),
        pairs.embed.Embed(pb.EmbedRequest(inputs="w1")),
        all_of(pairs.embed.EmbedStream(embeds("w1"))),
    )
    for call in of_other_models:
        assert await told(call) == ("FAILED_PRECONDITION", "UNSUPPORTED_TASK", "")

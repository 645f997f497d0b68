"""tei.v1 between real processes: what selvage.v1 answers, in the other contract's messages, order and errors."""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from references import Calls, dense, multi_vectors, near, refusal

from harness.stack import Stack, stack
from selvage.v1 import classification_pb2, embedding_pb2, model_pb2, ranking_pb2
from shared.services import PUBLIC_SERVICES, TEI_SERVICES
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


@pytest.fixture(scope="module")
async def bert() -> AsyncIterator[Stack]:
    """Dense and token vectors."""
    async with stack("random:tiny-bert") as running:
        yield running


@pytest.fixture(scope="module")
async def splade() -> AsyncIterator[Stack]:
    """Sparse vectors."""
    async with stack("random:tiny-splade") as running:
        yield running


@pytest.fixture(scope="module")
async def cross() -> AsyncIterator[Stack]:
    """A score of two texts."""
    async with stack("random:tiny-cross-encoder") as running:
        yield running


async def told(awaited: Any) -> tuple[str, str, str]:
    """Status, reason and field of an error."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await awaited
    return refusal(raised.value)


async def all_of(stream: Any) -> list[Any]:
    return [reply async for reply in stream]


async def same_as_single(
    single: Callable[[Any], Any], stream: Callable[[Any], Any], requests: Sequence[Any], shape: Callable[[Any], Any]
) -> None:
    """A stream answers every message, in order, as a call of its own would."""
    replies = await all_of(stream(iter(requests)))
    assert len(replies) == len(requests)
    for place in range(0, len(requests), 29):
        near(shape(replies[place]), shape(await single(requests[place])), PRECISE)


async def test_dense_vectors_are_those_of_selvage(bert: Stack) -> None:
    """Normalised unless told otherwise, cut, prompted, in as many dimensions as asked for."""
    tei, ours = Tei(bert.channel), Calls(bert.channel)
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


async def test_a_stream_of_texts_is_one_embed(bert: Stack) -> None:
    """In order, whatever groups they come in; options may change on the way."""
    tei, ours = Tei(bert.channel), Calls(bert.channel)
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


async def test_a_caller_writes_and_reads_in_turn(bert: Stack) -> None:
    """A message is answered while nothing else comes."""
    call = Tei(bert.channel).embed.EmbedStream()
    for text in TEXTS[:10]:
        await call.write(pb.EmbedRequest(inputs=text))
        assert len((await call.read()).embeddings) == 64
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


async def test_all_vectors_of_a_text(bert: Stack) -> None:
    """Token rows as the model gives them, one by one and in a stream."""
    tei, ours = Tei(bert.channel), Calls(bert.channel)
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
    near([value for _, value in pairs], sparse.values, PRECISE)
    single = await tei.embed.EmbedSparse(pb.EmbedSparseRequest(inputs=texts[9]))
    assert [each.index for each in single.sparse_embeddings] == [each.index for each in replies[9].sparse_embeddings]


def scores(reply: Any) -> list[float]:
    return [each.score for each in reply.predictions]


async def test_labels_are_those_of_selvage() -> None:
    """Best first, activated or raw."""
    async with stack("random:tiny-classifier") as running:
        tei, ours = Tei(running.channel), Calls(running.channel)
        for raw in (False, True):
            asked = classification_pb2.ClassifyRequest(texts=TEXTS[:60], normalize=not raw)
            expected = await ours.classification.Classify(asked)
            rows = np.array(expected.scores).reshape(60, -1)
            requests = [pb.PredictRequest(inputs=text, raw_scores=raw) for text in TEXTS[:60]]
            for reply, row in zip(await all_of(tei.predict.PredictStream(iter(requests))), rows, strict=True):
                order = np.argsort(-row, kind="stable")
                assert [each.label for each in reply.predictions] == [expected.labels[place] for place in order]
                near(scores(reply), row[order], PRECISE)
            await same_as_single(tei.predict.Predict, tei.predict.PredictStream, requests, scores)
        assert (await tei.info.Info(pb.InfoRequest())).model_type == pb.MODEL_TYPE_CLASSIFIER
        refused = await told(tei.rerank.Rerank(pb.RerankRequest(query="w1", texts=["w2"])))
        assert refused[:2] == ("FAILED_PRECONDITION", "UNSUPPORTED_TASK")


async def test_pairs_are_those_of_selvage(cross: Stack) -> None:
    """Alone, in a stream, and beside single texts; cut from either end."""
    tei, ours = Tei(cross.channel), Calls(cross.channel)
    firsts, seconds = TEXTS[:80], TEXTS[80:160]
    asked = classification_pb2.ClassifyRequest(texts=firsts, text_pairs=seconds, normalize=True)
    expected = (await ours.classification.Classify(asked)).scores
    requests = [pb.PredictPairRequest(inputs=pair) for pair in zip(firsts, seconds, strict=True)]
    replies = await all_of(tei.predict.PredictPairStream(iter(requests)))
    near([scores(reply)[0] for reply in replies], expected, PRECISE)
    mixed = [pb.PredictPairRequest(inputs=firsts[:1] if number % 3 else requests[0].inputs) for number in range(30)]
    await same_as_single(tei.predict.PredictPair, tei.predict.PredictPairStream, mixed, scores)
    near(
        scores(await tei.predict.PredictPair(pb.PredictPairRequest(inputs=["w1"]))),
        scores(await tei.predict.Predict(pb.PredictRequest(inputs="w1"))),
        PRECISE,
    )
    ends = {}
    for direction in (pb.TRUNCATION_DIRECTION_RIGHT, LEFT):
        pair = pb.PredictPairRequest(
            inputs=["w5 " + LONG, "w1"], truncate=True, truncation_direction=direction, raw_scores=True
        )
        ends[direction] = scores(await tei.predict.PredictPair(pair))[0]
    assert ends[0] != ends[1]


@pytest.mark.parametrize("raw", [False, True])
async def test_ranks_are_those_of_selvage(cross: Stack, raw: bool) -> None:
    """Best first, with their texts; a stream of texts is answered once."""
    tei, ours, texts = Tei(cross.channel), Calls(cross.channel), TEXTS[:70]
    expected = await ours.ranking.Rerank(ranking_pb2.RerankRequest(query="w3", documents=texts, normalize=not raw))
    reply = await tei.rerank.Rerank(pb.RerankRequest(query="w3", texts=texts, raw_scores=raw, return_text=True))
    messages = [pb.RerankStreamRequest(query="w3", text=text) for text in texts]
    messages[0].raw_scores, messages[0].return_text = raw, True
    streamed = await tei.rerank.RerankStream(iter(messages))
    for found in (reply, streamed):
        assert [rank.index for rank in found.ranks] == [result.index for result in expected.results]
        near([rank.score for rank in found.ranks], [result.score for result in expected.results], PRECISE)
        assert [rank.text for rank in found.ranks] == [texts[rank.index] for rank in found.ranks]
        assert found.metadata.compute_tokens == expected.usage.prompt_tokens
    bare = await tei.rerank.Rerank(pb.RerankRequest(query="w3", texts=texts))
    assert not any(rank.HasField("text") for rank in bare.ranks)


async def test_a_model_without_a_cross_encoder_ranks_as_it_does(bert: Stack) -> None:
    """By its own default method, whatever raw_scores says."""
    tei, ours = Tei(bert.channel), Calls(bert.channel)
    expected = await ours.ranking.Rerank(ranking_pb2.RerankRequest(query="w3", documents=TEXTS[:20]))
    for raw in (False, True):
        found = await tei.rerank.Rerank(pb.RerankRequest(query="w3", texts=TEXTS[:20], raw_scores=raw))
        assert [rank.index for rank in found.ranks] == [result.index for result in expected.results]
        near([rank.score for rank in found.ranks], [result.score for result in expected.results], PRECISE)


async def test_tokens_are_those_of_selvage(bert: Stack) -> None:
    """Special ones where asked for, places in prompt and text, texts however long; and back again."""
    tei, ours = Tei(bert.channel), Calls(bert.channel)
    text = "w5  w77 w1"
    shown = (await ours.model.Tokenize(model_pb2.TokenizeRequest(texts=[text], prompt_name="query"))).texts[0]
    full = await tei.tokenize.Tokenize(pb.EncodeRequest(inputs=text, add_special_tokens=True, prompt_name="query"))
    bare = await tei.tokenize.Tokenize(pb.EncodeRequest(inputs=text, prompt_name="query"))
    assert [token.id for token in full.tokens] == list(shown.ids)
    assert [token.special for token in full.tokens] == list(shown.special)
    assert [token.text for token in full.tokens if token.special] == [
        token for token, special in zip(shown.tokens, shown.special, strict=True) if special
    ]
    assert list(bare.tokens) == [token for token in full.tokens if not token.special]
    prompt = (await ours.model.GetModel(model_pb2.GetModelRequest())).card.prompts["query"]
    for token in bare.tokens:
        assert token.text == (prompt + text)[token.start : token.stop]
    assert not any(token.HasField("start") for token in full.tokens if token.special)
    assert len((await tei.tokenize.Tokenize(pb.EncodeRequest(inputs=LONG))).tokens) == 1000
    accented = (await tei.tokenize.Tokenize(pb.EncodeRequest(inputs="é w1", prompt_name="document"))).tokens[-1]
    assert "é w1".encode()[accented.start : accented.stop] == b"w1"
    requests = [pb.EncodeRequest(inputs=each) for each in TEXTS]
    streamed = await all_of(tei.tokenize.TokenizeStream(iter(requests)))
    assert streamed[17] == await tei.tokenize.Tokenize(requests[17])
    ids = [pb.DecodeRequest(ids=[token.id for token in reply.tokens], skip_special_tokens=True) for reply in streamed]
    decoded = await all_of(tei.tokenize.DecodeStream(iter(ids)))
    detokenized = await ours.model.Detokenize(
        model_pb2.DetokenizeRequest(
            tokenized=[embedding_pb2.TokenIds(ids=each.ids) for each in ids], skip_special_tokens=True
        )
    )
    assert [reply.text for reply in decoded] == list(detokenized.texts)
    assert (await tei.tokenize.Decode(ids[5])).text == decoded[5].text


async def test_info_is_that_of_the_model(bert: Stack, cross: Stack) -> None:
    """With our own bounds."""
    found = await Tei(bert.channel).info.Info(pb.InfoRequest())
    card = (await Calls(bert.channel).model.GetModel(model_pb2.GetModelRequest())).card
    assert (found.model_id, found.model_dtype, found.max_input_length) == (card.id, card.dtype, card.max_tokens)
    assert (found.model_type, found.max_concurrent_requests) == (pb.MODEL_TYPE_EMBEDDING, 2048)
    assert (await Tei(cross.channel).info.Info(pb.InfoRequest())).model_type == pb.MODEL_TYPE_RERANKER


def embeds(*texts: str) -> Iterable[pb.EmbedRequest]:
    return (pb.EmbedRequest(inputs=text) for text in texts)


@pytest.mark.parametrize("bad", [0, 150, 299])
async def test_the_first_error_ends_a_stream_after_the_answers_before_it(bert: Stack, bad: int) -> None:
    """An empty text, and one that is too long behind it."""
    texts = [*TEXTS[:bad], "", *TEXTS[bad + 1 :], LONG]
    replies = list[Any]()

    async def read() -> None:
        async for reply in Tei(bert.channel).embed.EmbedStream(embeds(*texts)):
            replies.append(reply)

    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await read()
    assert len(replies) == bad
    assert refusal(raised.value) == ("INVALID_ARGUMENT", "INVALID_INPUT", "inputs")
    assert raised.value.details() == "Input validation error: inputs is empty"


async def test_bad_input_is_refused_in_the_words_of_the_contract(bert: Stack, cross: Stack) -> None:
    """Status, reason and field of each."""
    tei, pairs = Tei(bert.channel), Tei(cross.channel)
    invalid, wrong_model = "INVALID_ARGUMENT", ("FAILED_PRECONDITION", "UNSUPPORTED_TASK", "")
    assert await told(tei.embed.Embed(pb.EmbedRequest())) == (invalid, "INVALID_INPUT", "inputs")
    assert await told(tei.embed.Embed(pb.EmbedRequest(inputs=LONG))) == (invalid, "INPUT_TOO_LONG", "inputs")
    found = await told(tei.embed.Embed(pb.EmbedRequest(inputs="w1", prompt_name="x")))
    assert found == (invalid, "UNSUPPORTED_TASK", "prompt_name")
    found = await told(tei.embed.Embed(pb.EmbedRequest(inputs="w1", dimensions=65)))
    assert found == (invalid, "UNSUPPORTED_DIMENSIONS", "dimensions")
    found = await told(tei.embed.Embed(pb.EmbedRequest(inputs="w1", truncation_direction=7)))
    assert found == (invalid, "INVALID_INPUT", "truncation_direction")
    assert await told(tei.embed.EmbedAll(pb.EmbedAllRequest())) == (invalid, "INVALID_INPUT", "inputs")
    assert await told(tei.rerank.Rerank(pb.RerankRequest(query="w1"))) == (invalid, "INVALID_INPUT", "texts")
    found = await told(tei.rerank.Rerank(pb.RerankRequest(query="w1", texts=["w1", LONG])))
    assert found == (invalid, "INPUT_TOO_LONG", "texts[1]")
    assert await told(tei.tokenize.Decode(pb.DecodeRequest(ids=[10**9]))) == (invalid, "INVALID_INPUT", "ids")
    assert await told(tei.tokenize.Decode(pb.DecodeRequest())) == (invalid, "INVALID_INPUT", "ids")
    assert await told(tei.tokenize.Tokenize(pb.EncodeRequest())) == (invalid, "INVALID_INPUT", "inputs")
    assert await told(pairs.predict.Predict(pb.PredictRequest())) == (invalid, "INVALID_INPUT", "inputs")
    found = await told(pairs.predict.PredictPair(pb.PredictPairRequest(inputs=["w1", LONG])))
    assert found == (invalid, "INPUT_TOO_LONG", "inputs[1]")
    found = await told(pairs.rerank.RerankStream(iter([pb.RerankStreamRequest(query=q, text="w1") for q in "ab"])))
    assert found == (invalid, "INVALID_INPUT", "query")
    assert (await told(pairs.rerank.RerankStream(iter([]))))[0] == invalid
    assert await told(tei.embed.EmbedSparse(pb.EmbedSparseRequest(inputs="w1"))) == wrong_model
    assert await told(tei.predict.Predict(pb.PredictRequest(inputs="w1"))) == wrong_model
    assert await told(pairs.embed.Embed(pb.EmbedRequest(inputs="w1"))) == wrong_model
    assert await told(all_of(pairs.embed.EmbedStream(embeds("w1", "w2")))) == wrong_model


async def test_what_it_took_stands_beside_a_reply(bert: Stack) -> None:
    """With the request id of the caller."""
    call = Tei(bert.channel).embed.Embed(pb.EmbedRequest(inputs="w1 w2"), metadata=(("x-request-id", "mine-9"),))
    reply = await call
    assert dict(await call.trailing_metadata())["x-request-id"] == "mine-9"
    headers = dict(await call.initial_metadata())
    assert (headers["x-compute-tokens"], headers["x-compute-characters"]) == ("4", "5")
    assert int(headers["x-total-time"]) == reply.metadata.total_time_ns // 1_000_000
    assert reply.metadata.total_time_ns >= reply.metadata.inference_time_ns > 0


async def test_it_is_found_by_reflection_and_told_by_health(bert: Stack) -> None:
    """Beside selvage.v1."""
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(bert.channel)
    async for response in stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")])):
        listed = {service.name for service in response.list_services_response.service}
        assert {*TEI_SERVICES, *PUBLIC_SERVICES} <= listed
        break
    asked = reflection_pb2.ServerReflectionRequest(file_containing_symbol="tei.v1.Embed")
    async for response in stub.ServerReflectionInfo(iter([asked])):
        assert len(response.file_descriptor_response.file_descriptor_proto) == 1
        break
    health: Any = health_pb2_grpc.HealthStub(bert.channel)
    for service in TEI_SERVICES:
        found = await health.Check(health_pb2.HealthCheckRequest(service=service))
        assert found.status == health_pb2.HealthCheckResponse.SERVING


async def test_without_a_worker_calls_are_unavailable_and_streams_end() -> None:
    """What waits for no worker too, since the model is not known; with it they are answered."""
    async with stack("random:tiny-bert") as running:
        tei = Tei(running.channel)
        stream = tei.embed.EmbedStream()
        await stream.write(pb.EmbedRequest(inputs="w1"))
        assert len((await stream.read()).embeddings) == 64
        await running.workers[0].stop()
        await stream.write(pb.EmbedRequest(inputs="w1"))
        assert (await told(stream.read()))[:2] == ("UNAVAILABLE", "WORKER_UNAVAILABLE")
        assert (await told(tei.embed.Embed(pb.EmbedRequest(inputs="w1"))))[0] == "UNAVAILABLE"
        ranked = [pb.RerankStreamRequest(query="w1", text="w2")]
        assert (await told(tei.rerank.RerankStream(iter(ranked))))[0] == "UNAVAILABLE"
        assert (await told(tei.info.Info(pb.InfoRequest())))[0] == "UNAVAILABLE"


async def test_too_much_is_refused_as_overload() -> None:
    """More streams than may be open."""
    async with stack("random:tiny-bert", frontend={"max-streams": 1}) as running:
        tei = Tei(running.channel)
        first = tei.embed.EmbedStream()
        await first.write(pb.EmbedRequest(inputs="w1"))
        assert len((await first.read()).embeddings) == 64
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await all_of(tei.embed.EmbedStream(embeds("w1")))
        assert refusal(raised.value)[:2] == ("RESOURCE_EXHAUSTED", "OVERLOADED")
        assert str(raised.value.details()).startswith("Model is overloaded: 1 streams are open")
        first.cancel()


async def test_a_door_that_was_not_chosen_is_closed() -> None:
    """And health knows nothing of it."""
    async with stack("random:tiny-bert", frontend={"doors": "grpc"}) as running:
        assert (await told(Tei(running.channel).embed.Embed(pb.EmbedRequest(inputs="w1"))))[0] == "UNIMPLEMENTED"
    async with stack("random:tiny-bert", frontend={"doors": "tei"}) as running:
        assert len((await Tei(running.channel).embed.Embed(pb.EmbedRequest(inputs="w1"))).embeddings) == 64
        found = await told(Calls(running.channel).embedding.Embed(embedding_pb2.EmbedRequest(texts=["w1"])))
        assert found[0] == "UNIMPLEMENTED"
        health: Any = health_pb2_grpc.HealthStub(running.channel)
        asked = health.Check(health_pb2.HealthCheckRequest(service=PUBLIC_SERVICES[0]))
        assert (await told(asked))[0] == "NOT_FOUND"

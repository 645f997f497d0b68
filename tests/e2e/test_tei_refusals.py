"""What tei.v1 refuses between real processes, in the words of the contract, and how a stream ends by it."""

import asyncio

import pytest

from harness.stack import Stack, stack
from support.random_models import random_model
from support.references import refusal
from support.tei_calls import LONG, TEXTS, Tei, all_of, embeds, told, until_refused
from tei.v1 import tei_pb2 as pb


@pytest.mark.parametrize("bad", [0, 150, 299])
async def test_the_first_error_ends_a_stream_after_the_answers_before_it(tiny: Stack, bad: int) -> None:
    """An empty text, and one that is too long behind it."""
    texts = [*TEXTS[:bad], "", *TEXTS[bad + 1 :], LONG]
    replies, error = await asyncio.to_thread(until_refused, tiny.frontends[0].address, embeds(*texts))
    assert len(replies) == bad
    assert refusal(error) == ("INVALID_ARGUMENT", "INVALID_INPUT", "inputs")
    assert error.details() == "Input validation error: inputs is empty"


async def test_bad_input_is_refused_in_the_words_of_the_contract(tiny: Stack, cross: Stack) -> None:
    """Status, reason and field of each. A stream that its first message ends has no other: a write
    may hide the status of an ended call."""
    tei, pairs = Tei(tiny.channel), Tei(cross.channel)
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
    assert await told(all_of(pairs.embed.EmbedStream(embeds("w1")))) == wrong_model


async def test_without_a_worker_calls_are_unavailable_and_streams_end() -> None:
    """What waits for no worker too, since the model is not known; with it they are answered."""
    async with stack(random_model("tiny-bert")) as running:
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

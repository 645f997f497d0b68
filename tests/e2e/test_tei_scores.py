"""Labels, pairs and rankings by tei.v1 between real processes: those of selvage.v1, in the other contract's order."""

import numpy as np
import pytest

from harness.stack import Stack
from selvage.v1 import classification_pb2, ranking_pb2
from support.references import Calls, near
from support.tei_calls import LEFT, LONG, PRECISE, TEXTS, Tei, all_of, same_as_single, scores, told
from tei.v1 import tei_pb2 as pb


async def test_labels_are_those_of_selvage(classifier: Stack) -> None:
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


async def test_a_model_without_a_cross_encoder_ranks_as_it_does(tiny: Stack) -> None:
    tei, ours = Tei(tiny.channel), Calls(tiny.channel)
    expected = await ours.ranking.Rerank(ranking_pb2.RerankRequest(query="w3", documents=TEXTS[:20]))
    for raw in (False, True):
        found = await tei.rerank.Rerank(pb.RerankRequest(query="w3", texts=TEXTS[:20], raw_scores=raw))
        assert [rank.index for rank in found.ranks] == [result.index for result in expected.results]
        near([rank.score for rank in found.ranks], [result.score for result in expected.results], PRECISE)

"""tei.v1 as a service between real processes: tokens, cards, costs, health, reflection, and its own door."""

from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from harness.stack import Stack
from selvage.v1 import embedding_pb2, model_pb2
from shared.server.options import PUBLIC_SERVICES, TEI_SERVICES
from support.references import Calls
from support.tei_calls import LONG, TEXTS, Tei, all_of
from tei.v1 import tei_pb2 as pb


async def test_tokens_are_those_of_selvage(tiny: Stack) -> None:
    """Special ones where asked for, places in prompt and text, texts however long; and back again."""
    tei, ours = Tei(tiny.channel), Calls(tiny.channel)
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


async def test_info_is_that_of_the_model(tiny: Stack, cross: Stack) -> None:
    """With our own bounds."""
    found = await Tei(tiny.channel).info.Info(pb.InfoRequest())
    card = (await Calls(tiny.channel).model.GetModel(model_pb2.GetModelRequest())).card
    assert (found.model_id, found.model_dtype, found.max_input_length) == (card.id, card.dtype, card.max_tokens)
    assert (found.model_type, found.max_concurrent_requests) == (pb.MODEL_TYPE_EMBEDDING, 2048)
    assert (await Tei(cross.channel).info.Info(pb.InfoRequest())).model_type == pb.MODEL_TYPE_RERANKER


async def test_what_it_took_stands_beside_a_reply(tiny: Stack) -> None:
    """With the request id of the caller."""
    call = Tei(tiny.channel).embed.Embed(pb.EmbedRequest(inputs="w1 w2"), metadata=(("x-request-id", "mine-9"),))
    reply = await call
    assert dict(await call.trailing_metadata())["x-request-id"] == "mine-9"
    headers = dict(await call.initial_metadata())
    assert (headers["x-compute-tokens"], headers["x-compute-characters"]) == ("4", "5")
    assert int(headers["x-total-time"]) == reply.metadata.total_time_ns // 1_000_000
    assert reply.metadata.total_time_ns >= reply.metadata.inference_time_ns > 0


async def test_it_is_found_by_reflection_and_told_by_health(tiny: Stack) -> None:
    """Beside selvage.v1."""
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(tiny.channel)
    async for response in stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")])):
        listed = {service.name for service in response.list_services_response.service}
        assert {*TEI_SERVICES, *PUBLIC_SERVICES} <= listed
        break
    asked = reflection_pb2.ServerReflectionRequest(file_containing_symbol="tei.v1.Embed")
    async for response in stub.ServerReflectionInfo(iter([asked])):
        assert len(response.file_descriptor_response.file_descriptor_proto) == 1
        break
    health: Any = health_pb2_grpc.HealthStub(tiny.channel)
    for service in TEI_SERVICES:
        found = await health.Check(health_pb2.HealthCheckRequest(service=service))
        assert found.status == health_pb2.HealthCheckResponse.SERVING

"""Bodies and endpoints of /tokenize and /decode."""

from typing import Annotated, Any

import msgspec

from frontend_service.api.field_names import FieldNames
from frontend_service.api.http.body import FILLED, Body, Id, Texts, inputs_of, texts_of
from frontend_service.api.http.dialects.pooling_request import input_type_of
from frontend_service.api.http.dialects.tei.common import INPUTS, resolved_name
from frontend_service.api.http.reply import FLOAT_WEIGHT, HttpReply, to_json
from frontend_service.api.http.route import Endpoint, HttpCall, with_field_names
from frontend_service.api.tei_v1.codec.tokenization import UNLIMITED, tei_tokens
from frontend_service.application.frontend import Frontend
from frontend_service.domain.requests import DetokenizeRequest, PromptChoice, TokenizeRequest
from frontend_service.services.models import ShownTexts
from shared.errors import InvalidInput

NAMES: FieldNames = {"tokenized": "ids"}


class TokenizeBody(msgspec.Struct, kw_only=True):
    """The body of POST /tokenize. `input_type` is a field of ours."""

    inputs: Texts
    add_special_tokens: bool = True
    prompt_name: str | None = None
    input_type: str | None = None
    model: str = ""


class DecodeBody(msgspec.Struct, kw_only=True):
    """The body of POST /decode: the ids of a text, or a list of such. `input_type` is a field of ours."""

    ids: Annotated[list[Id | list[Id]], FILLED]
    skip_special_tokens: bool = True
    input_type: str | None = None
    model: str = ""


def token_lists(shown: ShownTexts, inputs: tuple[str, ...], *, special: bool) -> list[list[dict[str, Any]]]:
    """The tokens of each text with their places in prompt and text, in bytes. `special`: with special tokens."""
    return [
        [token._asdict() for token in tei_tokens(shown.prompt + text, tokenized, special=special)]
        for text, tokenized in zip(inputs, shown.texts, strict=True)
    ]


def tokenize_endpoint(frontend: Frontend) -> Endpoint:
    """Makes the endpoint of POST /tokenize."""
    tokenize_body = Body(TokenizeBody)

    async def endpoint(call: HttpCall) -> HttpReply:
        body = await frontend.offload(len(call.body), tokenize_body.read, call.body)
        inputs = texts_of(body.inputs)
        if not inputs:
            raise InvalidInput("inputs is empty", field="inputs")
        request = TokenizeRequest(
            model=resolved_name(frontend, body.model),
            texts=inputs,
            prompt=PromptChoice(name=body.prompt_name, input_type=input_type_of(body.input_type)),
            cut=UNLIMITED,
        )
        shown = await with_field_names(frontend.models.tokenize(request), lambda: INPUTS)
        return await frontend.offload(
            FLOAT_WEIGHT * shown.size,
            lambda shown: HttpReply(body=to_json(token_lists(shown, inputs, special=body.add_special_tokens))),
            shown,
        )

    return endpoint


def decode_endpoint(frontend: Frontend) -> Endpoint:
    """Makes the endpoint of POST /decode."""
    decode_body = Body(DecodeBody)

    async def endpoint(call: HttpCall) -> HttpReply:
        body = await frontend.offload(len(call.body), decode_body.read, call.body)
        _, tokenized = inputs_of(body.ids, "ids")  # type: ignore[arg-type]
        request = DetokenizeRequest(
            model=resolved_name(frontend, body.model),
            tokenized=tokenized,
            skip_special_tokens=body.skip_special_tokens,
            input_type=input_type_of(body.input_type),
        )
        detokenized = await with_field_names(frontend.models.detokenize(request), lambda: NAMES)
        return HttpReply(body=to_json(detokenized.texts))

    return endpoint

"""/tokenize and /decode."""

from typing import Annotated, Any

import msgspec

from frontend_service.api.http.body import FILLED, Body, Id, Texts, inputs_of, texts_of
from frontend_service.api.http.dialects.tei.common import resolved_name
from frontend_service.api.http.reply import FLOAT_WEIGHT, HttpReply, to_json
from frontend_service.api.http.route import Endpoint, HttpCall
from frontend_service.api.renaming import Names
from frontend_service.api.tei_v1.codec.tokenization import byte_offsets
from frontend_service.application.frontend import Frontend
from frontend_service.domain.requests import DetokenizeRequest, PromptChoice, TokenizeRequest, Truncation
from frontend_service.services.models import ShownTexts
from shared.errors import InvalidInput

NAMES: Names = ((r"\btokenized\b", "ids"),)
UNLIMITED = Truncation(limited=False)


class TokenizeBody(msgspec.Struct, kw_only=True):
    """POST /tokenize."""

    inputs: Texts
    add_special_tokens: bool = True
    prompt_name: str | None = None
    model: str = ""


class DecodeBody(msgspec.Struct, kw_only=True):
    """POST /decode: the ids of a text, or a list of such."""

    ids: Annotated[list[Id | list[Id]], FILLED]
    skip_special_tokens: bool = True
    model: str = ""


def shown(texts: ShownTexts, inputs: tuple[str, ...], *, special: bool) -> list[list[dict[str, Any]]]:
    """Tokens with where they lie in their text after its prompt, in bytes."""
    found = []
    for given, text in zip(inputs, texts.texts, strict=True):
        whole, encoding = texts.prompt + given, text.encoding
        places, tokens = byte_offsets(whole), []
        columns = zip(encoding.ids, encoding.tokens, encoding.special_tokens_mask, text.offsets, strict=True)
        for identity, token, is_special, (start, stop) in columns:
            if not is_special:
                tokens.append(_token(identity, whole[start:stop], places[start], places[stop]))
            elif special:
                tokens.append({**_token(identity, token, None, None), "special": True})
        found.append(tokens)
    return found


def _token(identity: int, text: str, start: int | None, stop: int | None) -> dict[str, Any]:
    return {"id": identity, "text": text, "special": False, "start": start, "stop": stop}


def tokenize_endpoint(frontend: Frontend) -> Endpoint:
    """POST /tokenize."""
    tokenizing = Body(TokenizeBody)

    async def serve(call: HttpCall) -> HttpReply:
        body = await frontend.offload(len(call.body), tokenizing.read, call.body)
        inputs = texts_of(body.inputs)
        if not inputs:
            raise InvalidInput("inputs is empty", field="inputs")
        request = TokenizeRequest(
            model=resolved_name(frontend, body.model),
            texts=inputs,
            prompt=PromptChoice(name=body.prompt_name),
            cut=UNLIMITED,
        )
        texts = await frontend.models.tokenize(request)
        return await frontend.offload(
            FLOAT_WEIGHT * texts.size,
            lambda texts: HttpReply(body=to_json(shown(texts, inputs, special=body.add_special_tokens))),
            texts,
        )

    return serve


def decode_endpoint(frontend: Frontend) -> Endpoint:
    """POST /decode."""
    decoding = Body(DecodeBody)

    async def serve(call: HttpCall) -> HttpReply:
        body = await frontend.offload(len(call.body), decoding.read, call.body)
        _, tokenized = inputs_of(body.ids, "ids")  # type: ignore[arg-type]
        request = DetokenizeRequest(
            model=resolved_name(frontend, body.model), tokenized=tokenized, skip_special_tokens=body.skip_special_tokens
        )
        return HttpReply(body=to_json((await frontend.models.detokenize(request)).texts))

    return serve

"""vLLM's /score, and the fields that it shares with vLLM's rerank.

Source: vLLM's vllm/entrypoints/pooling/scoring/protocol.py.
"""

from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np

from frontend_service.api.http.body import Body, Texts, texts_of
from frontend_service.api.http.dialects.openai import list_reply
from frontend_service.api.http.dialects.pooling_request import REMEDIES, Activated, PoolingRequest
from frontend_service.api.http.refused_fields import refusing
from frontend_service.api.http.reply import HttpReply, each_in_parts
from frontend_service.api.http.route import Endpoint, ExchangeEndpoint, ParsedRequest
from frontend_service.api.renaming import Names
from frontend_service.application.frontend import Frontend
from frontend_service.domain.answer import Answer
from frontend_service.domain.requests import ScoreNormalization, ScoreRequest, Truncation
from shared.errors import InvalidInput
from shared.vectors import Layout

TokenLimit = Annotated[int, msgspec.Meta(ge=0, description="Longer texts are cut to so many tokens; 0: no limit.")]
PAIRS = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))
"""Names of the two sides of a comparison, in the order in which vLLM looks for them."""
SIDES = tuple(dict.fromkeys(name for pair in PAIRS for name in pair))


class ScoringRequest(PoolingRequest, kw_only=True):
    """Fields of requests that compare texts. `truncate_prompt_tokens` limits a pair, where the model reads pairs."""

    ACTIVATIONS: ClassVar[tuple[str, ...]] = ("use_activation", "softmax", "activation")

    max_tokens_per_query: TokenLimit | None = None
    max_tokens_per_doc: TokenLimit | None = None
    instruction: str | None = None
    chat_template_kwargs: Annotated[Any, refusing("instruction is what a template takes here", {})] = None
    softmax: Activated = None
    activation: Activated = None

    @property
    def normalization(self) -> ScoreNormalization:
        """Activated scores, unless a field says that logits and token rows stay as the model gives them."""
        raw = self.activated is False
        return ScoreNormalization.LOGITS_AND_RAW_ROWS if raw else ScoreNormalization.ACTIVATED

    @property
    def query_cut(self) -> Truncation:
        """The truncation of texts of the first side."""
        return _truncation(self.max_tokens_per_query, "max_tokens_per_query")

    @property
    def document_cut(self) -> Truncation:
        """The truncation of texts of the second side."""
        return _truncation(self.max_tokens_per_doc, "max_tokens_per_doc")


def _truncation(tokens: int | None, field: str) -> Truncation:
    return Truncation(truncate=True, max_tokens=tokens, field=field, bound=True) if tokens else Truncation(field=field)


class ScoreBody(ScoringRequest, kw_only=True):
    """The body of POST /score: one text with each of many, or pairs. Two sides, by one of four pairs of names."""

    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None
    items: Texts | None = None
    data_1: Texts | None = None
    data_2: Texts | None = None

    @property
    def pair(self) -> tuple[str, str]:
        """Names of the two sides. Raises InvalidInput unless the body has exactly one pair."""
        sent = self._sent
        pair = max(PAIRS, key=lambda pair: len(sent & set(pair))) if sent else PAIRS[-1]
        missing, odd = (
            [name for name in pair if name not in sent],
            [name for name in SIDES if name in sent - set(pair)],
        )
        if odd:
            beside = " and ".join(name for name in pair if name in sent)
            raise InvalidInput(f"{odd[0]} and {beside} are given, and are no pair", field=odd[0])
        if missing:
            raise InvalidInput(f"{missing[0]} is missing", field=missing[0])
        return pair

    @property
    def names(self) -> Names:
        """Our names in errors as this body has them: those of its pair, without a number for a side of one text."""
        first, second = next((pair for pair in PAIRS if self._sent == set(pair)), PAIRS[0])
        alone = tuple((rf"\b{name}\[0\]", name) for name in (first, second) if isinstance(getattr(self, name), str))
        return (*REMEDIES, (r"\bqueries\b", first), (r"\bdocuments\b", second), *alone)

    @property
    def _sent(self) -> set[str]:
        """Names of the sides that the body has."""
        return {name for name in SIDES if getattr(self, name) is not None}


def score_request(body: ScoreBody) -> ScoreRequest:
    """The request for scores of one text with many, or of pairs. Raises InvalidInput."""
    first, second = (texts_of(getattr(body, name)) for name in body.pair)
    return ScoreRequest(
        model=body.model,
        queries=first,
        documents=second,
        layout=Layout.MATRIX if len(first) == 1 else Layout.PAIRS,
        instruction=body.instruction,
        query_cut=body.query_cut,
        document_cut=body.document_cut,
        sequence_cut=body.cut,
        normalization=body.normalization,
    )


def score_reply(parsed: ParsedRequest[ScoreBody, ScoreRequest], answer: Answer) -> HttpReply:
    scores = np.frombuffer(answer.result.scores, dtype="<f4").tolist()
    data = [{"object": "score", "index": index, "score": score} for index, score in enumerate(scores)]
    return list_reply(parsed, "score", answer, each_in_parts(data))


def score_endpoint(frontend: Frontend) -> Endpoint:
    """Makes the endpoint for scores of texts that are compared."""
    return ExchangeEndpoint(
        frontend,
        Body(ScoreBody),
        score_request,
        frontend.ranking.score,
        score_reply,
        names_of=lambda body: body.names,
    )

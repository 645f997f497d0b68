"""Messages of tei.v1 <-> domain types, both directions side by side."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from frontend_service.api.packed import put_floats, put_rows, put_weights
from frontend_service.domain.limits import Limits
from frontend_service.domain.requests import (
    ClassifyRequest,
    DetokenizeRequest,
    EmbedRequest,
    PromptChoice,
    RerankRequest,
    ScoreNormalization,
    TokenizeRequest,
    Truncation,
)
from frontend_service.services.classify import Classified
from frontend_service.services.models import Detokenized, ShownTexts
from frontend_service.services.pipeline import Answer, ServedModel, Timing
from frontend_service.services.rank import Reranked
from frontend_service.tokenizing.tokenizer import TokenizedText
from shared import __version__
from shared.card import ModelCard
from shared.errors import InvalidInput
from shared.vectors import OutputKind, ScoringMethod, Task, TruncationSide
from tei.v1 import tei_pb2 as pb

SIDES = {
    pb.TRUNCATION_DIRECTION_RIGHT: TruncationSide.RIGHT,
    pb.TRUNCATION_DIRECTION_LEFT: TruncationSide.LEFT,
}
NANOSECONDS, MILLISECONDS = 1e9, 1e3
"""Nanoseconds and milliseconds in a second."""
SINGLE, PAIR = 1, 2
"""Number of texts of a message of PredictPair."""
SAME = ("query", "truncate", "truncation_direction")
"""Fields that must be equal in all messages of a RerankStream; other options are those of the first message."""
MODEL_FIELDS = frozenset({"model", "method", "outputs", "outputs[0]"})
"""Fields of an UnsupportedTask that mean a model of another kind."""
UNLIMITED = Truncation(limited=False)
"""Texts to tokenize may be longer than the model takes."""


def truncation_from_pb(message: Any) -> Truncation:
    """The treatment of texts over the limit."""
    side = SIDES.get(message.truncation_direction)
    if side is None:
        choices = ", ".join(f"{number} ({side.name})" for number, side in SIDES.items())
        field = "truncation_direction"
        raise InvalidInput(f"{field} is {message.truncation_direction}; there are {choices}", field=field)
    return Truncation(truncate=optional_truncate(message), side=side)


def optional_truncate(message: Any) -> bool | None:
    """The field `truncate`, or None where it is not set."""
    truncate: bool = message.truncate
    return truncate if message.HasField("truncate") else None


def prompt_from_pb(message: Any) -> PromptChoice:
    """The prompt that goes before the text, by its name."""
    return PromptChoice(name=message.prompt_name if message.HasField("prompt_name") else None)


def text_from_pb(message: Any) -> tuple[str]:
    """The text of a message. Raises InvalidInput for an empty one."""
    if not message.inputs:
        raise empty_text_error()
    return (message.inputs,)


def empty_text_error() -> InvalidInput:
    """The error for an empty text."""
    return InvalidInput("inputs is empty", field="texts[0]")


def compute_metadata(*texts: str, tokens: int) -> pb.Metadata:
    """The metadata of a reply without its times: characters and tokens that were computed."""
    return pb.Metadata(compute_chars=sum(map(len, texts)), compute_tokens=tokens)


def put_times(metadata: pb.Metadata, timing: Timing, seconds: float) -> None:
    """Adds the times of a reply, which took `seconds` in all, to its metadata."""
    metadata.total_time_ns = int(seconds * NANOSECONDS)
    metadata.tokenization_time_ns = int(timing.tokenize * NANOSECONDS)
    metadata.queue_time_ns = int(timing.queue * NANOSECONDS)
    metadata.inference_time_ns = int(timing.compute * NANOSECONDS)


def metadata_headers(metadata: pb.Metadata, device: str) -> tuple[tuple[str, str], ...]:
    """Metadata as the headers that scripts of text-embeddings-inference read; times in whole milliseconds."""
    total = _milliseconds(metadata.total_time_ns)
    return (
        ("x-compute-type", "cpu" if device == "cpu" else "gpu"),
        ("x-compute-time", total),
        ("x-compute-characters", str(metadata.compute_chars)),
        ("x-compute-tokens", str(metadata.compute_tokens)),
        ("x-total-time", total),
        ("x-tokenization-time", _milliseconds(metadata.tokenization_time_ns)),
        ("x-queue-time", _milliseconds(metadata.queue_time_ns)),
        ("x-inference-time", _milliseconds(metadata.inference_time_ns)),
    )


def _milliseconds(nanoseconds: int) -> str:
    return str(int(nanoseconds / NANOSECONDS * MILLISECONDS))


def info_response_to_pb(model: ServedModel, limits: Limits, requests: int, threads: int) -> pb.InfoResponse:
    """The model that is served and its limits. `requests`: most requests at once; `threads`: how many tokenise."""
    card = model.card
    return pb.InfoResponse(
        version=__version__,
        model_id=card.id,
        model_dtype=card.dtype,
        model_type=model_type(card),
        max_concurrent_requests=requests,
        max_input_length=card.max_tokens,
        max_batch_tokens=min(limits.request_tokens, model.queued_tokens),
        max_client_batch_size=min(limits.texts, limits.documents),
        tokenization_workers=threads,
    )


def model_type(card: ModelCard) -> pb.ModelType:
    """The first kind that fits a model: reranker, classifier, embedding."""
    if {ScoringMethod.CROSS_ENCODER, ScoringMethod.LISTWISE} & {*card.methods}:
        return pb.MODEL_TYPE_RERANKER
    return pb.MODEL_TYPE_CLASSIFIER if Task.CLASSIFY in card.tasks else pb.MODEL_TYPE_EMBEDDING


def embed_request_from_pb(message: pb.EmbedRequest) -> EmbedRequest:
    return EmbedRequest(
        texts=text_from_pb(message),
        outputs=(OutputKind.DENSE,),
        prompt=prompt_from_pb(message),
        cut=truncation_from_pb(message),
        normalize=message.normalize if message.HasField("normalize") else True,
        dimensions=message.dimensions if message.HasField("dimensions") else None,
    )


def embed_response_to_pb(request: EmbedRequest, answer: Answer) -> pb.EmbedResponse:
    rows = answer.result.dense
    assert rows is not None
    reply = pb.EmbedResponse(metadata=_text_metadata(request, answer))
    put_floats(reply, "embeddings", rows.data)
    return reply


def embed_sparse_request_from_pb(message: pb.EmbedSparseRequest) -> EmbedRequest:
    return _embed_request(message, OutputKind.SPARSE)


def embed_sparse_response_to_pb(request: EmbedRequest, answer: Answer) -> pb.EmbedSparseResponse:
    rows = answer.result.sparse
    assert rows is not None
    reply = pb.EmbedSparseResponse(metadata=_text_metadata(request, answer))
    put_weights(reply, "sparse_embeddings", rows.indices, rows.values)
    return reply


def embed_all_request_from_pb(message: pb.EmbedAllRequest) -> EmbedRequest:
    return _embed_request(message, OutputKind.MULTI_VECTOR, normalize=False)


def embed_all_response_to_pb(request: EmbedRequest, answer: Answer) -> pb.EmbedAllResponse:
    rows = answer.result.tokens
    assert rows is not None
    reply = pb.EmbedAllResponse(metadata=_text_metadata(request, answer))
    put_rows(reply, "token_embeddings", "embeddings", rows.data, rows.dimensions)
    return reply


def _embed_request(
    message: pb.EmbedSparseRequest | pb.EmbedAllRequest, output: OutputKind, normalize: bool | None = None
) -> EmbedRequest:
    return EmbedRequest(
        texts=text_from_pb(message),
        outputs=(output,),
        prompt=prompt_from_pb(message),
        cut=truncation_from_pb(message),
        normalize=normalize,
    )


def _text_metadata(request: EmbedRequest, answer: Answer) -> pb.Metadata:
    return compute_metadata(request.texts[0], tokens=answer.tokens.total)


def predict_request_from_pb(message: pb.PredictRequest) -> ClassifyRequest:
    return _classify_request(message, text_from_pb(message))


def predict_pair_request_from_pb(message: pb.PredictPairRequest) -> ClassifyRequest:
    count = len(message.inputs)
    if count not in (SINGLE, PAIR):
        raise InvalidInput(f"texts[0] has {count} texts, must have 1 or 2", field="texts[0]")
    if not any(message.inputs):
        raise empty_text_error()
    return _classify_request(message, (message.inputs[0],), tuple(message.inputs[1:]))


def _classify_request(
    message: pb.PredictRequest | pb.PredictPairRequest, texts: tuple[str], pairs: tuple[str, ...] = ()
) -> ClassifyRequest:
    return ClassifyRequest(texts=texts, pairs=pairs, cut=truncation_from_pb(message), normalize=not message.raw_scores)


def predict_response_to_pb(request: ClassifyRequest, classified: Classified) -> pb.PredictResponse:
    answer, labels = classified.answer, classified.labels
    metadata = compute_metadata(*request.texts, *request.pairs, tokens=answer.tokens.total)
    reply = pb.PredictResponse(metadata=metadata)
    scores = np.frombuffer(answer.result.scores, dtype="<f4")
    for label in classified.best_first[0].tolist():
        reply.predictions.add(score=float(scores[label]), label=labels[label])
    return reply


def rerank_request_from_pb(message: pb.RerankRequest) -> RerankRequest:
    if not message.query and "" in message.texts:
        place = list(message.texts).index("")
        raise InvalidInput(f"query and documents[{place}] are both empty", field=f"documents[{place}]")
    truncation = truncation_from_pb(message)
    return RerankRequest(
        queries=(message.query,),
        documents=tuple(message.texts),
        query_cut=truncation,
        document_cut=truncation,
        normalization=ScoreNormalization.LOGITS if message.raw_scores else ScoreNormalization.ACTIVATED,
        return_documents=message.return_text,
    )


def rerank_response_to_pb(request: RerankRequest, reranked: Reranked) -> pb.RerankResponse:
    characters = sum(map(len, request.documents)) + len(request.documents) * len(request.queries[0])
    metadata = compute_metadata(tokens=reranked.answer.tokens.total)
    metadata.compute_chars = characters
    reply = pb.RerankResponse(metadata=metadata)
    for (index, score), text in zip(reranked.ranking, reranked.texts, strict=True):
        reply.ranks.add(index=index, score=score, text=text)
    return reply


def begin_rerank_request(message: pb.RerankStreamRequest) -> pb.RerankRequest:
    """The request that a stream becomes, with the options of its first message and without texts."""
    request = pb.RerankRequest(
        query=message.query,
        raw_scores=message.raw_scores,
        return_text=message.return_text,
        truncation_direction=message.truncation_direction,
    )
    if message.HasField("truncate"):
        request.truncate = message.truncate
    return request


def add_stream_text(request: pb.RerankRequest, message: pb.RerankStreamRequest) -> None:
    """Adds the text of a message to the request of its stream. Raises InvalidInput where a field of SAME differs."""
    for field in SAME:
        if _value_of(message, field) != _value_of(request, field):
            place = len(request.texts)
            raise InvalidInput(f"{field} of message {place} is not that of the messages before it", field=field)
    request.texts.append(message.text)


def _value_of(message: pb.RerankStreamRequest | pb.RerankRequest, field: str) -> object:
    """The value of a field of SAME; None for `truncate` where it is not set."""
    return optional_truncate(message) if field == "truncate" else getattr(message, field)


class TeiToken(NamedTuple):
    """A token of a text as text-embeddings-inference has it.

    `text` is the part of the text that it stands for, and `start` and `stop` are that part's bounds in UTF-8. A special
    token stands for no part: its text is its name, and it has no bounds.
    """

    id: int
    text: str
    special: bool = False
    start: int | None = None
    stop: int | None = None


def encode_request_from_pb(message: pb.EncodeRequest) -> TokenizeRequest:
    return TokenizeRequest(texts=text_from_pb(message), prompt=prompt_from_pb(message), cut=UNLIMITED)


def encode_response_to_pb(message: pb.EncodeRequest, shown: ShownTexts) -> pb.EncodeResponse:
    reply = pb.EncodeResponse()
    for token in tei_tokens(shown.texts[0], special=message.add_special_tokens):
        reply.tokens.add(**token._asdict())
    return reply


def tei_tokens(tokenized: TokenizedText, *, special: bool) -> Iterator[TeiToken]:
    """The tokens of a text. `special`: with its special tokens."""
    whole, encoding = tokenized.read, tokenized.encoding
    offsets = byte_offsets(whole)
    columns = zip(encoding.ids, encoding.tokens, encoding.special_tokens_mask, tokenized.offsets, strict=True)
    for identity, name, is_special, (start, stop) in columns:
        if not is_special:
            yield TeiToken(id=identity, text=whole[start:stop], start=offsets[start], stop=offsets[stop])
        elif special:
            yield TeiToken(id=identity, text=name, special=True)


def byte_offsets(text: str) -> Sequence[int]:
    """The offset in UTF-8 at which each character of a text begins, and that at which the text ends."""
    if text.isascii():
        return range(len(text) + 1)
    encoded = np.frombuffer(text.encode(), dtype=np.uint8)
    begins: list[int] = np.flatnonzero(encoded & 0xC0 != 0x80).tolist()
    return [*begins, len(encoded)]


def decode_request_from_pb(message: pb.DecodeRequest) -> DetokenizeRequest:
    if not message.ids:
        raise InvalidInput("tokenized[0] is empty", field="tokenized[0]")
    return DetokenizeRequest(tokenized=(tuple(message.ids),), skip_special_tokens=message.skip_special_tokens)


def decode_response_to_pb(detokenized: Detokenized) -> pb.DecodeResponse:
    return pb.DecodeResponse(text=detokenized.texts[0])

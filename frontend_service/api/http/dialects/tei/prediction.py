"""Bodies and replies of /predict."""

from typing import Annotated, Literal

import msgspec
import numpy as np

from frontend_service.api.http.body import FILLED, Bound
from frontend_service.api.http.dialects.tei.common import FEWER, OPTIONS, CuttableRequest, counted_reply
from frontend_service.api.http.reply import HttpReply
from frontend_service.api.http.route import ParsedRequest
from frontend_service.api.renaming import Names
from frontend_service.domain.requests import ClassifyRequest
from frontend_service.services.classify import Classified
from shared.errors import InvalidInput


class LabelParameters(msgspec.Struct):
    """Parameters with which huggingface_hub asks for labels."""

    top_k: Bound | None = None
    function_to_apply: Literal["none"] | None = None


class PredictBody(CuttableRequest, kw_only=True):
    """The body of POST /predict.

    With `parameters`, as huggingface_hub sends them, the reply is always a list of lists.
    """

    inputs: Annotated[
        str | Annotated[list[str | Annotated[list[str], FILLED]], FILLED],
        msgspec.Meta(description="A text, a list of one text or two, or a list of such lists."),
    ]
    raw_scores: bool = False
    parameters: LabelParameters | None = None


def names_of(body: PredictBody) -> Names:
    """Our names in errors as this body has them: for a single text, a pair, or a list of texts and pairs."""
    inputs = body.inputs
    if isinstance(inputs, str):
        places: Names = ((r"\btexts\[0\]", "inputs"),)
    elif all(isinstance(text, str) for text in inputs):
        places = ((r"\btexts\[0\]", "inputs[0]"), (r"\btext_pairs\[0\]", "inputs[1]"))
    else:
        places = ((r"\btexts\[(\d+)\]", r"inputs[\1][0]"), (r"\btext_pairs\[(\d+)\]", r"inputs[\1][1]"))
    return (
        *FEWER,
        *places,
        ("text_pairs is empty", "inputs has no second texts"),
        (r"^(text_pairs|texts)$|\b(text_pairs|texts)(?= has )", "inputs"),
        *OPTIONS,
    )


def predict_request(body: PredictBody) -> ClassifyRequest:
    """The request for labels of texts or of pairs. Raises InvalidInput."""
    batch = _batch(body.inputs)
    if not batch:
        raise InvalidInput("inputs is empty", field="inputs")
    count = len(next(iter(batch.values())))
    for place, texts in batch.items():
        if len(texts) not in (1, 2):
            raise InvalidInput(f"{place} has {len(texts)} entries, must have 1 or 2", field=place)
        if len(texts) != count:
            raise InvalidInput(f"{place} has {len(texts)} entries, inputs[0] has {count}: send them apart", field=place)
        if not any(texts):
            raise InvalidInput(f"{place} is empty", field=place)
    firsts = tuple(texts[0] for texts in batch.values())
    seconds = tuple(texts[1] for texts in batch.values()) if count == 2 else ()
    raw = body.raw_scores or (body.parameters is not None and body.parameters.function_to_apply == "none")
    return ClassifyRequest(model=body.model, texts=firsts, pairs=seconds, cut=body.cut, normalize=not raw)


def _batch(inputs: str | list[str | list[str]]) -> dict[str, list[str]]:
    """Single texts and pairs, by their places in the body."""
    if isinstance(inputs, str):
        return {"inputs": [inputs]}
    texts = [entry for entry in inputs if isinstance(entry, str)]
    if inputs and len(texts) == len(inputs):
        return {"inputs": texts}
    return {f"inputs[{place}]": [entry] if isinstance(entry, str) else entry for place, entry in enumerate(inputs)}


def predict_reply(parsed: ParsedRequest[PredictBody, ClassifyRequest], classified: Classified) -> HttpReply:
    labels, parameters = classified.labels, parsed.body.parameters
    top_k = parameters.top_k if parameters is not None else None
    scores = np.frombuffer(classified.answer.result.scores, dtype="<f4").reshape(-1, len(labels))
    predictions = [
        [{"score": row[label], "label": labels[label]} for label in order[:top_k].tolist()]
        for row, order in zip(scores, classified.best_first, strict=True)
    ]
    inputs = parsed.body.inputs
    single = parameters is None and (isinstance(inputs, str) or all(isinstance(text, str) for text in inputs))
    return counted_reply(classified.answer, predictions[0] if single else predictions)

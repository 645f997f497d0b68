"""Errors as tei.v1 has them: its statuses, its field names, and its prefixes of messages."""

from frontend_service.api.field_names import FieldNames, field_as
from shared.errors import InvalidInput, Overloaded, SelvageError, UnknownModel, UnsupportedTask, printable

MODEL_FIELDS = frozenset({"model", "method", "outputs", "outputs[0]"})
"""Fields of an UnsupportedTask that mean a model of another kind: no request of tei.v1 has them."""
PREFIXES = {InvalidInput: "Input validation error: ", Overloaded: "Model is overloaded: "}
"""The beginning of a message, by class of error."""
_SIDE = {"truncation_side": "truncation_direction"}
_INPUT: FieldNames = {**_SIDE, **dict.fromkeys(("texts", "texts[]", "text_pairs", "text_pairs[]"), "inputs")}
FIELDS: dict[str, FieldNames] = {
    "PredictPair": {**_INPUT, "texts[]": "inputs[0]", "text_pairs[]": "inputs[1]"},
    "Rerank": {**_SIDE, "return_documents": "return_text", "documents": "texts"},
    "Decode": {"tokenized": "ids", "tokenized[]": "ids"},
}
"""Our names of fields by method; in all other methods texts are `inputs`."""


def tei_error(method: str, error: SelvageError) -> SelvageError:
    """Adapts an error of a call to tei.v1, whose full name is `method`. The new error has no traceback."""
    names = FIELDS.get(method.rpartition("/")[2].removesuffix("Stream"), _INPUT)
    field, message = printable(field_as(error.field, names)), printable(error.message)
    prefix = next((prefix for kind, prefix in PREFIXES.items() if isinstance(error, kind)), "")
    wrong_model = isinstance(error, UnknownModel) or (isinstance(error, UnsupportedTask) and field in MODEL_FIELDS)
    if wrong_model:
        prefix = field = ""
    adapted = type(error)(prefix + message, field=field, retry_after=error.retry_after)
    if wrong_model:
        adapted.status = "FAILED_PRECONDITION"
    return adapted

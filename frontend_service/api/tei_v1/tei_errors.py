"""Errors as tei.v1 has them: its statuses, its field names, and its prefixes of messages."""

from frontend_service.api.renaming import renamed
from shared.errors import InvalidInput, Overloaded, SelvageError, UnknownModel, UnsupportedTask

MODEL_FIELDS = frozenset({"model", "method", "outputs", "outputs[0]"})
"""Fields of an UnsupportedTask that mean a model of another kind: no request of tei.v1 has them."""
PREFIXES = {InvalidInput: "Input validation error: ", Overloaded: "Model is overloaded: "}
"""The beginning of a message, by class of error."""
_SIDE = ("truncation_side", "truncation_direction")
_INPUT = (
    (r"ask for fewer texts, a smaller data_type .*", "ask for fewer inputs"),
    (r"ask for a smaller data_type .*", "send fewer tokens"),
    (r"text_pairs", "inputs"),
    (r"\btexts(\[\d+\])?", "inputs"),
    _SIDE,
)
_RANKED = (
    (r"return_documents", "return_text"),
    (r"set top_n, or ", ""),
    (r"\bdocuments\b", "texts"),
    _SIDE,
)
FIELDS = {
    "PredictPair": (
        (r"text_pairs\[\d+\]", "inputs[1]"),
        (r"texts\[\d+\]", "inputs[0]"),
        *_INPUT,
    ),
    "Rerank": _RANKED,
    "Decode": ((r"tokenized\[\d+\]", "ids"), (r"tokenized", "ids")),
}
"""Replacements of our names by method; in all other methods texts are `inputs`."""


def tei_error(method: str, error: SelvageError) -> SelvageError:
    """Adapts an error of a call to tei.v1, whose full name is `method`. The new error has no traceback."""
    names = FIELDS.get(method.rpartition("/")[2].removesuffix("Stream"), _INPUT)
    field, message = renamed(error.field, names), renamed(error.message, names)
    prefix = next((prefix for kind, prefix in PREFIXES.items() if isinstance(error, kind)), "")
    wrong_model = isinstance(error, UnknownModel) or (isinstance(error, UnsupportedTask) and field in MODEL_FIELDS)
    if wrong_model:
        prefix = field = ""
    adapted = type(error)(prefix + message, field=field, retry_after=error.retry_after)
    if wrong_model:
        adapted.status = "FAILED_PRECONDITION"
    return adapted

"""Errors in the words of tei.v1: its statuses, its fields, and how it begins a message of each kind."""

from frontend_service.api.renaming import renamed
from shared.errors import InvalidInput, Overloaded, SelvageError, UnknownModel, UnsupportedTask

OF_THE_MODEL = frozenset({"model", "method", "outputs", "outputs[0]"})
"""Fields of UNSUPPORTED_TASK where the model is of another kind: no request of tei.v1 has them."""
BEGINNINGS = {InvalidInput: "Input validation error: ", Overloaded: "Model is overloaded: "}
_SIDE = ("truncation_side", "truncation_direction")
_INPUT = ((r"text_pairs", "inputs"), (r"\btexts(\[\d+\])?", "inputs"), _SIDE)
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
"""What our names are called, by method; of all others, a text is `inputs`."""


def told(method: str, error: SelvageError) -> SelvageError:
    """The same error of an rpc of tei.v1, whose full name is `method`. Where it came from is lost."""
    names = FIELDS.get(method.rpartition("/")[2].removesuffix("Stream"), _INPUT)
    field, message = renamed(error.field, names), renamed(error.message, names)
    beginning = next((each for kind, each in BEGINNINGS.items() if isinstance(error, kind)), "")
    wrong_model = isinstance(error, UnknownModel) or (isinstance(error, UnsupportedTask) and field in OF_THE_MODEL)
    if wrong_model:
        beginning = field = ""
    found = type(error)(beginning + message, field=field, retry_after=error.retry_after)
    if wrong_model:
        found.status = "FAILED_PRECONDITION"
    return found

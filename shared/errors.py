"""The tree of all errors that callers may see. Standard library only.

SelvageError
 |- InvalidInput            the request makes no sense
 |   |- InputTooLong        a text over the model's limit, and `truncate` unset
 |   |- LimitExceeded       more texts, bytes or tokens than a limit of the service
 |   |- UnsupportedDimensions
 |   |- UnsupportedTask     an output, method or prompt that the model does not have
 |   |- DimensionMismatch   query and document vectors of different widths
 |   '- ResultTooLarge      the reply would not fit into a message
 |- Unauthenticated         no key, or one that is not known
 |- UnknownModel
 |- Overloaded              try again after `retry_after` seconds
 |- InputTooLarge           the device ran out of memory on this input alone; no retry helps
 |- WorkerUnavailable       no worker ready, or draining
 |   '- GivenBack           another worker may be asked; never leaves a frontend
 |- DeadlineExceeded
 '- Internal                a bug of ours

Each class names its gRPC status and the reason that clients see in `google.rpc.ErrorInfo`.
A message never quotes a text of the user's.
"""

import re
from typing import ClassVar

MESSAGE_LETTERS, FIELD_LETTERS = 1000, 200
"""Most letters of an error's message and of its field: gRPC sends both several times, as metadata of 8 KiB at most."""
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Pattern of letters that control a terminal, end a line, or turn the order of those behind them; and halves of one."""


class SelvageError(Exception):
    """Base of all errors that a caller may see.

    `message` is for a person; `field` is the path of the request field at fault (`texts[3]`) or empty;
    `retry_after` is in seconds, or None where a retry is no remedy. `status` is that of the class, unless an
    API's protocol has another one for this error.
    """

    status: str
    reason: ClassVar[str]

    def __init__(self, message: str, *, field: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.retry_after = retry_after


class InvalidInput(SelvageError):
    status = "INVALID_ARGUMENT"
    reason = "INVALID_INPUT"


class InputTooLong(InvalidInput):
    reason = "INPUT_TOO_LONG"


class LimitExceeded(InvalidInput):
    reason = "LIMIT_EXCEEDED"


class UnsupportedDimensions(InvalidInput):
    reason = "UNSUPPORTED_DIMENSIONS"


class UnsupportedTask(InvalidInput):
    reason = "UNSUPPORTED_TASK"


class DimensionMismatch(InvalidInput):
    reason = "DIMENSION_MISMATCH"


class ResultTooLarge(InvalidInput):
    reason = "RESULT_TOO_LARGE"


class Unauthenticated(SelvageError):
    status = "UNAUTHENTICATED"
    reason = "UNAUTHENTICATED"


class UnknownModel(SelvageError):
    status = "NOT_FOUND"
    reason = "UNKNOWN_MODEL"


class Overloaded(SelvageError):
    status = "RESOURCE_EXHAUSTED"
    reason = "OVERLOADED"


class InputTooLarge(SelvageError):
    status = "RESOURCE_EXHAUSTED"
    reason = "INPUT_TOO_LARGE"


class WorkerUnavailable(SelvageError):
    status = "UNAVAILABLE"
    reason = "WORKER_UNAVAILABLE"


class GivenBack(WorkerUnavailable):
    """Between the services only: a worker has begun nothing of the job, so another may be asked.

    Not so where a worker stalled or was lost with the job: it may have been the job that did it.
    """

    reason = "GIVEN_BACK"


class DeadlineExceeded(SelvageError):
    status = "DEADLINE_EXCEEDED"
    reason = "DEADLINE_EXCEEDED"


class Internal(SelvageError):
    status = "INTERNAL"
    reason = "INTERNAL"


def clip(name: str, letters: int = 64) -> str:
    """A name that a caller gave, quoted and of bounded length, for use in a message."""
    return repr(name if len(name) <= letters else name[:letters] + "...")


def printable(text: str) -> str:
    """A text for a person, without what would control a terminal: the error of another process may hold anything.

    Letters that join or break words stay, as Persian, Indic scripts and emoji have them.
    """
    if text.isprintable():
        return text
    return UNPRINTABLE.sub(lambda letter: " " if letter[0].isspace() else "?", text)


def shorten(text: str, size: int = MESSAGE_LETTERS) -> str:
    """A text of another process, cut to `size` bytes of UTF-8."""
    data = text.encode(errors="replace")
    return text if len(data) <= size else f"{data[:size].decode(errors='ignore')}..."


def error_classes(base: type[SelvageError] = SelvageError) -> dict[str, type[SelvageError]]:
    """All errors by reason. A class without a reason of its own is seen by callers as its base class."""
    classes = {base.reason: base} if "reason" in vars(base) else {}
    for subclass in base.__subclasses__():
        classes |= error_classes(subclass)
    return classes


class ModelRefused(Exception):
    """A model that a worker will not serve. The message is one line and names the file and the key."""

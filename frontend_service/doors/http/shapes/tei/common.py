"""What bodies and replies of this shape have in common."""

from typing import Any, Literal

import msgspec

from frontend_service.answer import Answer
from frontend_service.doors.http.reply import Reply, written
from frontend_service.doors.renaming import Names
from frontend_service.requests import Cut
from shared.vectors import TruncationSide

INPUTS: Names = ((r"text_pairs", "inputs"), (r"\b(texts|tokenized)\b", "inputs"))
SIDES = {"left": TruncationSide.LEFT, "right": TruncationSide.RIGHT}


class Cuttable(msgspec.Struct, kw_only=True):
    """What may be done with long texts. `model` is needed only where several are served."""

    truncate: bool | None = None
    truncation_direction: Literal["left", "right", "Left", "Right"] = "right"
    model: str = ""

    @property
    def cut(self) -> Cut:
        """In our words."""
        return Cut(truncate=self.truncate, side=SIDES[self.truncation_direction.lower()])


def counted(answer: Answer, content: Any) -> Reply:
    """With what the load scripts of text-embeddings-inference read beside a reply."""
    return Reply(body=written(content), headers=(("x-compute-tokens", str(answer.tokens.total)),))

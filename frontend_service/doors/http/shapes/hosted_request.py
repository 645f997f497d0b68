"""Fields that Jina's and NVIDIA's embeddings have beside OpenAI's, and those of ours.

Source: api.jina.ai/openapi.json; docs.nvidia.com/nim, API reference of the embedding NIM, 2.2.
"""

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from frontend_service.doors.http.refusing import refusing
from frontend_service.doors.http.shapes.encoding import Encoding
from frontend_service.doors.http.shapes.pooling_request import NO_IMAGES, TRUNCATE, VectorRequest
from frontend_service.requests import Cut, PromptChoice
from shared.errors import InvalidInput, clip
from shared.vectors import InputType, TruncationSide

SIDES = {
    "query": InputType.QUERY,
    "search_query": InputType.QUERY,
    "document": InputType.DOCUMENT,
    "passage": InputType.DOCUMENT,
    "search_document": InputType.DOCUMENT,
    "classification": InputType.UNSPECIFIED,
    "clustering": InputType.UNSPECIFIED,
}
"""What a text is, by the words of `input_type`."""
TASKS = {
    "retrieval.query": InputType.QUERY,
    "retrieval.passage": InputType.DOCUMENT,
    "text-matching": InputType.UNSPECIFIED,
    "classification": InputType.UNSPECIFIED,
    "clustering": InputType.UNSPECIFIED,
    "separation": InputType.UNSPECIFIED,
}
"""The same by Jina's `task`; a model's adapters are no part of it."""
CUTS: dict[Any, tuple[bool, TruncationSide | None]] = {
    True: (True, None),
    False: (False, None),
    "NONE": (False, None),
    "START": (True, TruncationSide.LEFT),
    "END": (True, TruncationSide.RIGHT),
}


class HostedRequest(VectorRequest, kw_only=True):
    """Inputs to embed. What a text is goes by `input_type` or `task`, its prompt by `prompt` or `prompt_name`."""

    ACTIVATIONS: ClassVar[tuple[str, ...]] = (*VectorRequest.ACTIVATIONS, "normalized")

    input_type: str | None = None
    prompt: str | None = None
    prompt_name: str | None = None
    truncate: bool | Literal["NONE", "START", "END"] | None = None
    task: str | None = None
    normalized: bool | None = None
    embedding_type: Annotated[
        Literal["float", "base64"] | None, msgspec.Meta(description='"float" or "base64", as encoding_format.')
    ] = None
    late_chunking: Annotated[Any, refusing("every text is embedded alone", False)] = None
    return_multivector: Annotated[Any, refusing("/v1/multi-vector gives a vector for each token", False)] = None
    modality: Annotated[Any, refusing(NO_IMAGES, "text")] = None

    @property
    def choice(self) -> PromptChoice:
        """Raises InvalidInput."""
        by_task = _found(TASKS, self.task, "task")
        if self.input_type is None:
            return PromptChoice(literal=self.prompt, name=self.prompt_name, input_type=by_task)
        side = side_of(self.input_type)
        if self.task is not None and by_task is not side:
            raise InvalidInput("input_type and task disagree about what the texts are", field="task")
        return PromptChoice(literal=self.prompt, name=self.prompt_name, input_type=side)

    @property
    def cut(self) -> Cut:
        """By either of two fields. Raises InvalidInput where they disagree."""
        cut = super().cut
        if self.truncate is None:
            return cut
        truncate, side = CUTS[self.truncate]
        if cut.truncate and not truncate:
            raise InvalidInput(f"truncate says that nothing is cut, {TRUNCATE} that it is", field="truncate")
        return replace(cut, truncate=truncate, side=side or cut.side)

    @property
    def encoding(self) -> Encoding:
        encoding = super().encoding
        return encoding if self.embedding_type is None else replace(encoding, format=self.embedding_type)


def side_of(word: str | None) -> InputType:
    """What a text is by `input_type`. Raises InvalidInput."""
    return _found(SIDES, word, "input_type")


def _found(sides: dict[str, InputType], word: str | None, field: str) -> InputType:
    if word is None:
        return InputType.UNSPECIFIED
    if word not in sides:
        raise InvalidInput(f"{field} is {clip(word)}, there are {', '.join(sides)}", field=field)
    return sides[word]

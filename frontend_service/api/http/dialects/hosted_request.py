"""Fields that Jina's and NVIDIA's embeddings have beside OpenAI's.

Source: api.jina.ai/openapi.json; docs.nvidia.com/nim, API reference of the embedding NIM, 2.2.
"""

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from frontend_service.api.http.dialects.encoding import Encoding
from frontend_service.api.http.dialects.pooling_request import NO_IMAGES, TRUNCATE, VectorRequest, find_input_type
from frontend_service.api.http.refused_fields import refusing
from frontend_service.api.renaming import Names
from frontend_service.domain.requests import PromptChoice, Truncation
from shared.errors import InvalidInput
from shared.vectors import InputType, TruncationSide

TASKS = {
    "retrieval.query": InputType.QUERY,
    "retrieval.passage": InputType.DOCUMENT,
    "text-matching": InputType.UNSPECIFIED,
    "classification": InputType.UNSPECIFIED,
    "clustering": InputType.UNSPECIFIED,
    "separation": InputType.UNSPECIFIED,
}
"""Input types by Jina's `task`, which chooses no adapter here."""
CUTS: dict[Any, tuple[bool, TruncationSide | None]] = {
    True: (True, None),
    False: (False, None),
    "NONE": (False, None),
    "START": (True, TruncationSide.LEFT),
    "END": (True, TruncationSide.RIGHT),
}
"""Whether and on which side a text is cut, by the values of `truncate`."""


class HostedRequest(VectorRequest, kw_only=True):
    """Inputs to embed, whose input type is in `input_type` or `task`."""

    ACTIVATIONS: ClassVar[tuple[str, ...]] = (*VectorRequest.ACTIVATIONS, "normalized")

    truncate: bool | Literal["NONE", "START", "END"] | None = None
    task: str | None = None
    normalized: bool | None = None
    embedding_type: Annotated[
        Literal["float", "base64"] | None, msgspec.Meta(description='"float" or "base64", as encoding_format.')
    ] = None
    late_chunking: Annotated[Any, refusing("/v1/embeddings gives each chunk a vector", False)] = None
    return_multivector: Annotated[Any, refusing("/v1/multi-vector gives a vector for each token", False)] = None
    return_tokenized_input: Annotated[Any, refusing("/v1/multi-vector has return_token_ids", False)] = None
    modality: Annotated[Any, refusing(NO_IMAGES, "text")] = None

    @property
    def choice(self) -> PromptChoice:
        """The prompt that goes before each text. Raises InvalidInput where `input_type` and `task` disagree."""
        choice = super().choice
        if self.task is None:
            return choice
        input_type = find_input_type(TASKS, self.task, "task")
        if self.input_type is not None and input_type is not choice.input_type:
            raise InvalidInput("input_type and task disagree about what the texts are", field="task")
        return replace(choice, input_type=input_type)

    @property
    def cut(self) -> Truncation:
        """The truncation that either of two fields asks for. Raises InvalidInput where they disagree."""
        cut = super().cut
        if self.truncate is None:
            return cut
        truncate, side = CUTS[self.truncate]
        if cut.truncate and not truncate:
            raise InvalidInput(f"truncate says that nothing is cut, {TRUNCATE} that it is", field="truncate")
        return replace(cut, truncate=truncate, side=side or cut.side)

    @property
    def encoding(self) -> Encoding:
        """The encoding: base64 where either of two fields says so, whose default is `float`. Raises InvalidInput."""
        encoding = super().encoding
        if self.embedding_type != "base64":
            return encoding
        if encoding.is_bytes:
            raise InvalidInput("encoding_format asks for bytes, embedding_type for base64", field="embedding_type")
        return replace(encoding, format="base64")

    @property
    def names(self) -> Names:
        """Our names in errors as this body has them. Where `truncate` forbids cutting, it is also the remedy."""
        names = super().names
        return names if self.truncate is None else ((r"\btruncate would cut\b", "truncate: true would cut"), *names)

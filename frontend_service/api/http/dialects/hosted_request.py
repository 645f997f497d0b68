"""Fields that Jina's, NVIDIA's and Voyage's embeddings have beside OpenAI's.

Source: api.jina.ai/openapi.json; docs.nvidia.com/nim, API reference of the embedding NIM, 2.2;
docs.voyageai.com/reference/embeddings-api.
"""

import re
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from frontend_service.api.field_names import FieldNames
from frontend_service.api.http.body import Count, Id, of_one_kind
from frontend_service.api.http.dialects.encoding import Encoding, OutputDtype
from frontend_service.api.http.dialects.pooling_request import NO_IMAGES, TRUNCATE, VectorRequest, agreed
from frontend_service.api.http.refused_fields import refusing
from frontend_service.domain.requests import PromptChoice, Truncation
from shared.errors import InvalidInput
from shared.vectors import InputType, TruncationSide

SIDES = {"query": InputType.QUERY, "passage": InputType.DOCUMENT, "document": InputType.DOCUMENT}
"""Input types by the last word of Jina's `task`, which chooses no adapter here."""
CUTS: dict[Any, tuple[bool, TruncationSide | None]] = {
    True: (True, None),
    False: (False, None),
    "NONE": (False, None),
    "START": (True, TruncationSide.LEFT),
    "END": (True, TruncationSide.RIGHT),
}
"""Whether and on which side a text is cut, by the values of `truncate` and `truncation`."""


_TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


class InputObject(msgspec.Struct):
    """A text as an object, as Jina's models of texts and images take it."""

    text: str | None = None
    image: Any = None
    url: Any = None
    bytes: Any = None
    pdf: Any = None
    audio: Any = None
    video: Any = None

    def text_at(self, place: str) -> str:
        """The text of the entry `place`. Raises InvalidInput for any other content, and where there is none."""
        for name in self.__struct_fields__:
            if name != "text" and getattr(self, name) is not None:
                raise InvalidInput(f"{place}.{name} is refused: only texts are read", field=f"{place}.{name}")
        if self.text is None:
            raise InvalidInput(f"{place}.text is missing", field=f"{place}.text")
        return self.text


HostedInputs = Annotated[
    str | InputObject | list[str | Id | list[Id] | InputObject], of_one_kind({"anyOf": [{"type": "string"}, _TEXT]})
]


class HostedRequest(VectorRequest, kw_only=True):
    """Inputs to embed, whose input type is in `input_type` or `task`."""

    ACTIVATIONS: ClassVar[tuple[str, ...]] = (*VectorRequest.ACTIVATIONS, "normalized")

    input: HostedInputs  # type: ignore[assignment]
    truncate: bool | Literal["NONE", "START", "END"] | None = None
    task: str | None = None
    normalized: bool | None = None
    embedding_type: Annotated[
        Literal["float", "base64"] | None, msgspec.Meta(description='"float" or "base64", as encoding_format.')
    ] = None
    late_chunking: Annotated[Any, refusing("/v1/embeddings gives each chunk a vector", False)] = None
    return_multivector: Annotated[Any, refusing("/v1/multi-vector gives a vector for each token", False)] = None
    return_tokenized_input: Annotated[Any, refusing("/v1/multi-vector has return_token_ids", False)] = None
    output_dimension: Count | None = None
    output_dtype: Annotated[
        OutputDtype | None,
        msgspec.Meta(description="binary, ubinary: a bit a number, eight in an integer of -128 to 127, or 0 to 255."),
    ] = None
    truncation: bool | None = None
    modality: Annotated[Any, refusing(NO_IMAGES, "text")] = None

    @property
    def plain_input(self) -> Any:
        """The input with each object as its text."""
        if isinstance(self.input, InputObject):
            return self.input.text_at("input")
        if isinstance(self.input, str):
            return self.input
        return [
            entry.text_at(f"input[{place}]") if isinstance(entry, InputObject) else entry
            for place, entry in enumerate(self.input)
        ]

    @property
    def choice(self) -> PromptChoice:
        """The prompt that goes before each text. Raises InvalidInput where `input_type` and `task` disagree."""
        choice = super().choice
        if self.task is None:
            return choice
        input_type = SIDES.get(re.split("[._]", self.task)[-1], InputType.UNSPECIFIED)
        if self.input_type is not None and input_type is not choice.input_type:
            raise InvalidInput("input_type and task disagree about what the texts are", field="task")
        return replace(choice, input_type=input_type, task=self.task)

    @property
    def cut(self) -> Truncation:
        """The truncation that any of three fields asks for. Raises InvalidInput where they disagree."""
        cut, first = super().cut, TRUNCATE
        for name in ("truncate", "truncation"):
            if (value := getattr(self, name)) is None:
                continue
            truncate, side = CUTS[value]
            if cut.truncate is not None and cut.truncate is not truncate:
                raise InvalidInput(f"{first} and {name} disagree about whether texts are cut", field=name)
            cut, first = replace(cut, truncate=truncate, side=side or cut.side), name
        return cut

    @property
    def width(self) -> int | None:
        """The dimensions by either name."""
        width: int | None = agreed(self, "dimensions", "output_dimension")
        return width

    @property
    def encoding(self) -> Encoding:
        """The encoding: base64 where either of two fields says so, whose default is `float`. Raises InvalidInput."""
        encoding = super().encoding
        if self.embedding_type == "base64":
            encoding = replace(encoding, format="base64")
        kind = self.output_dtype or "float"
        if kind != "float" and encoding.dtype != "float32":
            raise InvalidInput(f"output_dtype is {kind}, which embed_dtype contradicts", field="output_dtype")
        return replace(encoding, output_dtype=kind)

    @property
    def names(self) -> FieldNames:
        """Our names in errors as this body has them."""
        renamed = {"dimensions": "output_dimension"} if self.output_dimension is not None else {}
        return {**super().names, **renamed}

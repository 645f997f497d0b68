"""Fields that vLLM's requests have in common, and their meaning here.

Source: vLLM's vllm/entrypoints/pooling/base/protocol.py; older names of fields are those of its versions 0.11 to 0.14.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from frontend_service.api.http.fields import Count, Inputs, refusing
from frontend_service.api.http.routes import EmbedDtype, Encoding, Format
from frontend_service.domain.requests import FieldNames, PromptChoice, Truncation
from shared.errors import InvalidInput, clip
from shared.vectors import InputType, TruncationSide

TRUNCATE = "truncate_prompt_tokens"
MODEL: FieldNames = {"outputs[]": "model", "method": "model"}
"""Our names of outputs and methods as the requests of vLLM have them: those of the model."""
INPUT: FieldNames = {**MODEL, "texts": "input", "tokenized": "input", "text_pairs": "input"}
"""Our names as requests with `input` have them."""
TRUNCATION_SIDES = {"left": TruncationSide.LEFT, "right": TruncationSide.RIGHT}
INPUT_TYPES = {
    "query": InputType.QUERY,
    "search_query": InputType.QUERY,
    "document": InputType.DOCUMENT,
    "passage": InputType.DOCUMENT,
    "search_document": InputType.DOCUMENT,
    "classification": InputType.UNSPECIFIED,
    "clustering": InputType.UNSPECIFIED,
}
"""Input types by the words that clients have for them."""
NO_CHAT = "no chat template is applied here; send texts as input"
NO_IMAGES = "only texts are served, no images, audio or video"
TruncateTokens = Annotated[
    int,
    msgspec.Meta(ge=-1, description="Longer inputs are cut to so many tokens; -1: to what the model takes."),
]
Activated = Annotated[
    bool | None,
    msgspec.Meta(description="Unit length, or scores of a classifier; false: rows and logits as the model gives them."),
]


class PoolingRequest(msgspec.Struct, kw_only=True):
    """Fields that all of vLLM's requests have. `request_id` becomes the id of the reply, logs have the header's."""

    ACTIVATIONS: ClassVar[tuple[str, ...]] = ("use_activation",)
    """All names of the field `activated`."""

    model: str = ""
    user: str | None = None
    truncate_prompt_tokens: TruncateTokens | None = None
    truncation_side: Literal["left", "right"] | None = None
    padding: Annotated[Any, refusing("texts are never padded", "do_not_pad")] = None
    request_id: str | None = None
    priority: Annotated[Any, refusing("the header selvage-priority tells how urgent a request is", 0)] = None
    mm_processor_kwargs: Annotated[Any, refusing(NO_IMAGES, {})] = None
    cache_salt: str | None = None
    use_activation: Activated = None

    @property
    def cut(self) -> Truncation:
        """The truncation of a sequence that the model reads. A limit above the model's counts as the model's."""
        side = None if self.truncation_side is None else TRUNCATION_SIDES[self.truncation_side]
        tokens = self.truncate_prompt_tokens
        if tokens is None:
            return Truncation(side=side)
        return Truncation(
            truncate=True, side=side, max_tokens=None if tokens < 0 else tokens, field=TRUNCATE, bound=True
        )

    @property
    def activated(self) -> bool | None:
        """Whether to apply the activation; None: not said. Raises InvalidInput where two names of it disagree."""
        activated: bool | None = agreed(self, *self.ACTIVATIONS)
        return activated


class InputRequest(PoolingRequest, kw_only=True):
    """Inputs of one kind; fields that would make an input of a chat are refused."""

    input: Inputs
    add_special_tokens: Annotated[
        Any, refusing("texts get the special tokens that the model was trained with", True)
    ] = None
    messages: Annotated[Any, refusing(NO_CHAT)] = None
    chat_template: Annotated[Any, refusing(NO_CHAT)] = None
    chat_template_kwargs: Annotated[Any, refusing(NO_CHAT, {})] = None
    add_generation_prompt: Annotated[Any, refusing(NO_CHAT, False)] = None
    continue_final_message: Annotated[Any, refusing(NO_CHAT, False)] = None
    media_io_kwargs: Annotated[Any, refusing(NO_IMAGES, {})] = None

    @property
    def plain_input(self) -> Any:
        """The input as texts or token ids. Raises InvalidInput."""
        return self.input

    @property
    def names(self) -> FieldNames:
        """Our names in errors as this body has them: `input[3]`, or `input` for one text or its ids."""
        alone = not isinstance(self.input, list) or (bool(self.input) and isinstance(self.input[0], int))
        return {**INPUT, "texts[]": "input", "tokenized[]": "input"} if alone else INPUT


class VectorRequest(InputRequest, kw_only=True):
    """Inputs whose vectors are asked for, and the encoding of the reply.

    `normalize` is vLLM's older name of `use_activation`. `input_type`, `prompt` and `prompt_name` are fields of ours.
    """

    ACTIVATIONS: ClassVar[tuple[str, ...]] = ("use_activation", "normalize")

    encoding_format: Format | None = "float"
    embed_dtype: EmbedDtype | None = "float32"
    endianness: Annotated[Any, refusing("base64 is little-endian", "native", "little")] = None
    dimensions: Count | None = None
    normalize: bool | None = None
    input_type: str | None = None
    prompt: str | None = None
    prompt_name: str | None = None

    @property
    def choice(self) -> PromptChoice:
        """The prompt that goes before each text. Raises InvalidInput."""
        return PromptChoice(literal=self.prompt, name=self.prompt_name, input_type=input_type_of(self.input_type))

    @property
    def width(self) -> int | None:
        """The dimensions that are asked for. Raises InvalidInput where two names of them disagree."""
        return self.dimensions

    @property
    def encoding(self) -> Encoding:
        """The encoding of the reply's vectors."""
        return Encoding(
            format=self.encoding_format or "float",
            dtype=self.embed_dtype or "float32",
        )


def agreed(body: msgspec.Struct, *names: str) -> Any:
    """The value of fields that are one under several names; None where none is given. Raises InvalidInput where two
    disagree."""
    values = {name: getattr(body, name) for name in names if getattr(body, name) is not None}
    for name, value in values.items():
        first = next(iter(values))
        if value != values[first]:
            raise InvalidInput(f"{first} and {name} are the same field, and disagree", field=name)
    return next(iter(values.values()), None)


def input_type_of(word: str | None) -> InputType:
    """The input type by a word of `input_type`. Raises InvalidInput."""
    return find_input_type(INPUT_TYPES, word, "input_type")


def find_input_type(input_types: Mapping[str, InputType], word: str | None, field: str) -> InputType:
    """The input type by a word of any field. Raises InvalidInput, naming the field."""
    if word is None:
        return InputType.UNSPECIFIED
    if word not in input_types:
        raise InvalidInput(f"{field} is {clip(word)}, there are {', '.join(input_types)}", field=field)
    return input_types[word]

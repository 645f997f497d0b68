from selvage.v1 import embedding_pb2 as _embedding_pb2
from selvage.v1 import vectors_pb2 as _vectors_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Task(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TASK_UNSPECIFIED: _ClassVar[Task]
    TASK_EMBED: _ClassVar[Task]
    TASK_RERANK: _ClassVar[Task]
    TASK_CLASSIFY: _ClassVar[Task]
    TASK_CLASSIFY_TOKENS: _ClassVar[Task]

class Activation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACTIVATION_UNSPECIFIED: _ClassVar[Activation]
    ACTIVATION_IDENTITY: _ClassVar[Activation]
    ACTIVATION_SIGMOID: _ClassVar[Activation]
    ACTIVATION_SOFTMAX: _ClassVar[Activation]
    ACTIVATION_TANH: _ClassVar[Activation]

class QueryExpansion(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    QUERY_EXPANSION_UNSPECIFIED: _ClassVar[QueryExpansion]
    QUERY_EXPANSION_FIXED: _ClassVar[QueryExpansion]
    QUERY_EXPANSION_MIN: _ClassVar[QueryExpansion]
TASK_UNSPECIFIED: Task
TASK_EMBED: Task
TASK_RERANK: Task
TASK_CLASSIFY: Task
TASK_CLASSIFY_TOKENS: Task
ACTIVATION_UNSPECIFIED: Activation
ACTIVATION_IDENTITY: Activation
ACTIVATION_SIGMOID: Activation
ACTIVATION_SOFTMAX: Activation
ACTIVATION_TANH: Activation
QUERY_EXPANSION_UNSPECIFIED: QueryExpansion
QUERY_EXPANSION_FIXED: QueryExpansion
QUERY_EXPANSION_MIN: QueryExpansion

class ModelCard(_message.Message):
    __slots__ = ("id", "family", "outputs", "methods", "default_method", "pooling", "dimensions", "allowed_dimensions", "multi_vector_dimensions", "normalizes", "prompts", "default_prompt_name", "include_prompt", "max_tokens", "vocabulary_size", "dtype", "device", "attention", "linear", "fingerprint", "special_tokens", "notice", "tasks", "multi_vector_head", "sparse_head", "averages_late_interaction", "labels", "activation", "pair_template", "instructed_pair_template", "weight_bytes", "late_interaction", "normalizes_multi_vectors", "max_sim", "truncation_side", "aliases", "formats", "chunk_tokens", "cache_tokens", "whole_texts", "limited_by", "query_route", "pools_spans", "listwise", "special_ids", "bitwise_invariant", "token_pooling", "task_models", "message_templates", "prompted_message_templates")
    class PromptsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class SpecialTokensEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class TaskModelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class MessageTemplatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class PromptedMessageTemplatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    METHODS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_METHOD_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    MULTI_VECTOR_DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    NORMALIZES_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_PROMPT_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    LINEAR_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    MULTI_VECTOR_HEAD_FIELD_NUMBER: _ClassVar[int]
    SPARSE_HEAD_FIELD_NUMBER: _ClassVar[int]
    AVERAGES_LATE_INTERACTION_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    ACTIVATION_FIELD_NUMBER: _ClassVar[int]
    PAIR_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTED_PAIR_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    LATE_INTERACTION_FIELD_NUMBER: _ClassVar[int]
    NORMALIZES_MULTI_VECTORS_FIELD_NUMBER: _ClassVar[int]
    MAX_SIM_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_SIDE_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    FORMATS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WHOLE_TEXTS_FIELD_NUMBER: _ClassVar[int]
    LIMITED_BY_FIELD_NUMBER: _ClassVar[int]
    QUERY_ROUTE_FIELD_NUMBER: _ClassVar[int]
    POOLS_SPANS_FIELD_NUMBER: _ClassVar[int]
    LISTWISE_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_IDS_FIELD_NUMBER: _ClassVar[int]
    BITWISE_INVARIANT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_POOLING_FIELD_NUMBER: _ClassVar[int]
    TASK_MODELS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TEMPLATES_FIELD_NUMBER: _ClassVar[int]
    PROMPTED_MESSAGE_TEMPLATES_FIELD_NUMBER: _ClassVar[int]
    id: str
    family: str
    outputs: _containers.RepeatedScalarFieldContainer[_vectors_pb2.OutputKind]
    methods: _containers.RepeatedScalarFieldContainer[_vectors_pb2.ScoringMethod]
    default_method: _vectors_pb2.ScoringMethod
    pooling: str
    dimensions: int
    allowed_dimensions: _containers.RepeatedScalarFieldContainer[int]
    multi_vector_dimensions: int
    normalizes: bool
    prompts: _containers.ScalarMap[str, str]
    default_prompt_name: str
    include_prompt: bool
    max_tokens: int
    vocabulary_size: int
    dtype: str
    device: str
    attention: str
    linear: str
    fingerprint: str
    special_tokens: _containers.ScalarMap[str, int]
    notice: str
    tasks: _containers.RepeatedScalarFieldContainer[Task]
    multi_vector_head: bool
    sparse_head: str
    averages_late_interaction: bool
    labels: _containers.RepeatedScalarFieldContainer[str]
    activation: Activation
    pair_template: str
    instructed_pair_template: str
    weight_bytes: int
    late_interaction: LateInteraction
    normalizes_multi_vectors: bool
    max_sim: str
    truncation_side: _vectors_pb2.TruncationSide
    aliases: _containers.RepeatedScalarFieldContainer[str]
    formats: str
    chunk_tokens: int
    cache_tokens: int
    whole_texts: str
    limited_by: str
    query_route: QueryRoute
    pools_spans: bool
    listwise: Listwise
    special_ids: _containers.RepeatedScalarFieldContainer[int]
    bitwise_invariant: bool
    token_pooling: TokenPooling
    task_models: _containers.ScalarMap[str, str]
    message_templates: _containers.ScalarMap[str, str]
    prompted_message_templates: _containers.ScalarMap[str, str]
    def __init__(self, id: _Optional[str] = ..., family: _Optional[str] = ..., outputs: _Optional[_Iterable[_Union[_vectors_pb2.OutputKind, str]]] = ..., methods: _Optional[_Iterable[_Union[_vectors_pb2.ScoringMethod, str]]] = ..., default_method: _Optional[_Union[_vectors_pb2.ScoringMethod, str]] = ..., pooling: _Optional[str] = ..., dimensions: _Optional[int] = ..., allowed_dimensions: _Optional[_Iterable[int]] = ..., multi_vector_dimensions: _Optional[int] = ..., normalizes: bool = ..., prompts: _Optional[_Mapping[str, str]] = ..., default_prompt_name: _Optional[str] = ..., include_prompt: bool = ..., max_tokens: _Optional[int] = ..., vocabulary_size: _Optional[int] = ..., dtype: _Optional[str] = ..., device: _Optional[str] = ..., attention: _Optional[str] = ..., linear: _Optional[str] = ..., fingerprint: _Optional[str] = ..., special_tokens: _Optional[_Mapping[str, int]] = ..., notice: _Optional[str] = ..., tasks: _Optional[_Iterable[_Union[Task, str]]] = ..., multi_vector_head: bool = ..., sparse_head: _Optional[str] = ..., averages_late_interaction: bool = ..., labels: _Optional[_Iterable[str]] = ..., activation: _Optional[_Union[Activation, str]] = ..., pair_template: _Optional[str] = ..., instructed_pair_template: _Optional[str] = ..., weight_bytes: _Optional[int] = ..., late_interaction: _Optional[_Union[LateInteraction, _Mapping]] = ..., normalizes_multi_vectors: bool = ..., max_sim: _Optional[str] = ..., truncation_side: _Optional[_Union[_vectors_pb2.TruncationSide, str]] = ..., aliases: _Optional[_Iterable[str]] = ..., formats: _Optional[str] = ..., chunk_tokens: _Optional[int] = ..., cache_tokens: _Optional[int] = ..., whole_texts: _Optional[str] = ..., limited_by: _Optional[str] = ..., query_route: _Optional[_Union[QueryRoute, _Mapping]] = ..., pools_spans: bool = ..., listwise: _Optional[_Union[Listwise, _Mapping]] = ..., special_ids: _Optional[_Iterable[int]] = ..., bitwise_invariant: bool = ..., token_pooling: _Optional[_Union[TokenPooling, _Mapping]] = ..., task_models: _Optional[_Mapping[str, str]] = ..., message_templates: _Optional[_Mapping[str, str]] = ..., prompted_message_templates: _Optional[_Mapping[str, str]] = ...) -> None: ...

class TokenPooling(_message.Message):
    __slots__ = ("pool_factor", "protected_tokens", "normalize")
    POOL_FACTOR_FIELD_NUMBER: _ClassVar[int]
    PROTECTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    pool_factor: float
    protected_tokens: int
    normalize: bool
    def __init__(self, pool_factor: _Optional[float] = ..., protected_tokens: _Optional[int] = ..., normalize: bool = ...) -> None: ...

class Listwise(_message.Message):
    __slots__ = ("query_length", "document_length", "block_documents", "dimensions", "opening", "instruction", "document", "closing", "document_marker", "document_marker_id", "query_marker", "query_marker_id")
    QUERY_LENGTH_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    BLOCK_DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    OPENING_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    CLOSING_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_MARKER_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_MARKER_ID_FIELD_NUMBER: _ClassVar[int]
    QUERY_MARKER_FIELD_NUMBER: _ClassVar[int]
    QUERY_MARKER_ID_FIELD_NUMBER: _ClassVar[int]
    query_length: int
    document_length: int
    block_documents: int
    dimensions: int
    opening: str
    instruction: str
    document: str
    closing: str
    document_marker: str
    document_marker_id: int
    query_marker: str
    query_marker_id: int
    def __init__(self, query_length: _Optional[int] = ..., document_length: _Optional[int] = ..., block_documents: _Optional[int] = ..., dimensions: _Optional[int] = ..., opening: _Optional[str] = ..., instruction: _Optional[str] = ..., document: _Optional[str] = ..., closing: _Optional[str] = ..., document_marker: _Optional[str] = ..., document_marker_id: _Optional[int] = ..., query_marker: _Optional[str] = ..., query_marker_id: _Optional[int] = ...) -> None: ...

class QueryRoute(_message.Message):
    __slots__ = ("default_input_type", "family", "pooling", "attention", "max_tokens", "vocabulary_size", "include_prompt", "truncation_side", "sparse_head", "table_digest", "special_ids")
    DEFAULT_INPUT_TYPE_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_PROMPT_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_SIDE_FIELD_NUMBER: _ClassVar[int]
    SPARSE_HEAD_FIELD_NUMBER: _ClassVar[int]
    TABLE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_IDS_FIELD_NUMBER: _ClassVar[int]
    default_input_type: _vectors_pb2.InputType
    family: str
    pooling: str
    attention: str
    max_tokens: int
    vocabulary_size: int
    include_prompt: bool
    truncation_side: _vectors_pb2.TruncationSide
    sparse_head: str
    table_digest: str
    special_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, default_input_type: _Optional[_Union[_vectors_pb2.InputType, str]] = ..., family: _Optional[str] = ..., pooling: _Optional[str] = ..., attention: _Optional[str] = ..., max_tokens: _Optional[int] = ..., vocabulary_size: _Optional[int] = ..., include_prompt: bool = ..., truncation_side: _Optional[_Union[_vectors_pb2.TruncationSide, str]] = ..., sparse_head: _Optional[str] = ..., table_digest: _Optional[str] = ..., special_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class LateInteraction(_message.Message):
    __slots__ = ("query_length", "document_length", "query_expansion", "expansion_length", "expansion_id", "attend_to_expansion", "skiplist", "skip_in_queries", "skip_in_documents")
    QUERY_LENGTH_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    QUERY_EXPANSION_FIELD_NUMBER: _ClassVar[int]
    EXPANSION_LENGTH_FIELD_NUMBER: _ClassVar[int]
    EXPANSION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEND_TO_EXPANSION_FIELD_NUMBER: _ClassVar[int]
    SKIPLIST_FIELD_NUMBER: _ClassVar[int]
    SKIP_IN_QUERIES_FIELD_NUMBER: _ClassVar[int]
    SKIP_IN_DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    query_length: int
    document_length: int
    query_expansion: QueryExpansion
    expansion_length: int
    expansion_id: int
    attend_to_expansion: bool
    skiplist: _containers.RepeatedScalarFieldContainer[int]
    skip_in_queries: bool
    skip_in_documents: bool
    def __init__(self, query_length: _Optional[int] = ..., document_length: _Optional[int] = ..., query_expansion: _Optional[_Union[QueryExpansion, str]] = ..., expansion_length: _Optional[int] = ..., expansion_id: _Optional[int] = ..., attend_to_expansion: bool = ..., skiplist: _Optional[_Iterable[int]] = ..., skip_in_queries: bool = ..., skip_in_documents: bool = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("texts", "documents", "text_bytes", "message_bytes", "request_tokens", "request_rows", "scores", "similarities", "vector_elements", "queued_tokens", "pooled_tokens", "spans")
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    TEXT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ROWS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    SIMILARITIES_FIELD_NUMBER: _ClassVar[int]
    VECTOR_ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    POOLED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    texts: int
    documents: int
    text_bytes: int
    message_bytes: int
    request_tokens: int
    request_rows: int
    scores: int
    similarities: int
    vector_elements: int
    queued_tokens: int
    pooled_tokens: int
    spans: int
    def __init__(self, texts: _Optional[int] = ..., documents: _Optional[int] = ..., text_bytes: _Optional[int] = ..., message_bytes: _Optional[int] = ..., request_tokens: _Optional[int] = ..., request_rows: _Optional[int] = ..., scores: _Optional[int] = ..., similarities: _Optional[int] = ..., vector_elements: _Optional[int] = ..., queued_tokens: _Optional[int] = ..., pooled_tokens: _Optional[int] = ..., spans: _Optional[int] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("card", "limits")
    CARD_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    card: ModelCard
    limits: Limits
    def __init__(self, card: _Optional[_Union[ModelCard, _Mapping]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("cards",)
    CARDS_FIELD_NUMBER: _ClassVar[int]
    cards: _containers.RepeatedCompositeFieldContainer[ModelCard]
    def __init__(self, cards: _Optional[_Iterable[_Union[ModelCard, _Mapping]]] = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("model", "texts", "input_type", "prompt_name", "prompt", "truncate", "truncation_side", "max_tokens")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    INPUT_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_SIDE_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: str
    texts: _containers.RepeatedScalarFieldContainer[str]
    input_type: _vectors_pb2.InputType
    prompt_name: str
    prompt: str
    truncate: bool
    truncation_side: _vectors_pb2.TruncationSide
    max_tokens: int
    def __init__(self, model: _Optional[str] = ..., texts: _Optional[_Iterable[str]] = ..., input_type: _Optional[_Union[_vectors_pb2.InputType, str]] = ..., prompt_name: _Optional[str] = ..., prompt: _Optional[str] = ..., truncate: bool = ..., truncation_side: _Optional[_Union[_vectors_pb2.TruncationSide, str]] = ..., max_tokens: _Optional[int] = ...) -> None: ...

class TokenizedText(_message.Message):
    __slots__ = ("ids", "tokens", "special", "starts", "ends", "truncated", "expansion_tokens")
    IDS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    EXPANSION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[str]
    special: _containers.RepeatedScalarFieldContainer[bool]
    starts: _containers.RepeatedScalarFieldContainer[int]
    ends: _containers.RepeatedScalarFieldContainer[int]
    truncated: bool
    expansion_tokens: int
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[str]] = ..., special: _Optional[_Iterable[bool]] = ..., starts: _Optional[_Iterable[int]] = ..., ends: _Optional[_Iterable[int]] = ..., truncated: bool = ..., expansion_tokens: _Optional[int] = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("model", "texts")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    model: str
    texts: _containers.RepeatedCompositeFieldContainer[TokenizedText]
    def __init__(self, model: _Optional[str] = ..., texts: _Optional[_Iterable[_Union[TokenizedText, _Mapping]]] = ...) -> None: ...

class DetokenizeRequest(_message.Message):
    __slots__ = ("model", "tokenized", "skip_special_tokens", "input_type")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOKENIZED_FIELD_NUMBER: _ClassVar[int]
    SKIP_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    INPUT_TYPE_FIELD_NUMBER: _ClassVar[int]
    model: str
    tokenized: _containers.RepeatedCompositeFieldContainer[_embedding_pb2.TokenIds]
    skip_special_tokens: bool
    input_type: _vectors_pb2.InputType
    def __init__(self, model: _Optional[str] = ..., tokenized: _Optional[_Iterable[_Union[_embedding_pb2.TokenIds, _Mapping]]] = ..., skip_special_tokens: bool = ..., input_type: _Optional[_Union[_vectors_pb2.InputType, str]] = ...) -> None: ...

class DetokenizeResponse(_message.Message):
    __slots__ = ("model", "texts")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    model: str
    texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, model: _Optional[str] = ..., texts: _Optional[_Iterable[str]] = ...) -> None: ...

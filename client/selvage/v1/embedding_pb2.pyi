from google.protobuf import duration_pb2 as _duration_pb2
from selvage.v1 import usage_pb2 as _usage_pb2
from selvage.v1 import vectors_pb2 as _vectors_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Spans(_message.Message):
    __slots__ = ("starts", "ends")
    STARTS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    starts: _containers.RepeatedScalarFieldContainer[int]
    ends: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, starts: _Optional[_Iterable[int]] = ..., ends: _Optional[_Iterable[int]] = ...) -> None: ...

class EmbedRequest(_message.Message):
    __slots__ = ("model", "texts", "tokenized", "input_type", "outputs", "prompt_name", "prompt", "dimensions", "normalize", "data_type", "truncate", "truncation_side", "max_tokens", "sparse_top_k", "return_token_ids", "pool_factor", "protected_tokens", "late_chunking", "spans", "window_overlap")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    TOKENIZED_FIELD_NUMBER: _ClassVar[int]
    INPUT_TYPE_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_SIDE_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SPARSE_TOP_K_FIELD_NUMBER: _ClassVar[int]
    RETURN_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    POOL_FACTOR_FIELD_NUMBER: _ClassVar[int]
    PROTECTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LATE_CHUNKING_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_OVERLAP_FIELD_NUMBER: _ClassVar[int]
    model: str
    texts: _containers.RepeatedScalarFieldContainer[str]
    tokenized: _containers.RepeatedCompositeFieldContainer[TokenIds]
    input_type: _vectors_pb2.InputType
    outputs: _containers.RepeatedScalarFieldContainer[_vectors_pb2.OutputKind]
    prompt_name: str
    prompt: str
    dimensions: int
    normalize: bool
    data_type: _vectors_pb2.DataType
    truncate: bool
    truncation_side: _vectors_pb2.TruncationSide
    max_tokens: int
    sparse_top_k: int
    return_token_ids: bool
    pool_factor: float
    protected_tokens: int
    late_chunking: bool
    spans: _containers.RepeatedCompositeFieldContainer[Spans]
    window_overlap: int
    def __init__(self, model: _Optional[str] = ..., texts: _Optional[_Iterable[str]] = ..., tokenized: _Optional[_Iterable[_Union[TokenIds, _Mapping]]] = ..., input_type: _Optional[_Union[_vectors_pb2.InputType, str]] = ..., outputs: _Optional[_Iterable[_Union[_vectors_pb2.OutputKind, str]]] = ..., prompt_name: _Optional[str] = ..., prompt: _Optional[str] = ..., dimensions: _Optional[int] = ..., normalize: bool = ..., data_type: _Optional[_Union[_vectors_pb2.DataType, str]] = ..., truncate: bool = ..., truncation_side: _Optional[_Union[_vectors_pb2.TruncationSide, str]] = ..., max_tokens: _Optional[int] = ..., sparse_top_k: _Optional[int] = ..., return_token_ids: bool = ..., pool_factor: _Optional[float] = ..., protected_tokens: _Optional[int] = ..., late_chunking: bool = ..., spans: _Optional[_Iterable[_Union[Spans, _Mapping]]] = ..., window_overlap: _Optional[int] = ...) -> None: ...

class EmbedResponse(_message.Message):
    __slots__ = ("model", "dense", "sparse", "multi_vector", "usage", "timing")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DENSE_FIELD_NUMBER: _ClassVar[int]
    SPARSE_FIELD_NUMBER: _ClassVar[int]
    MULTI_VECTOR_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    model: str
    dense: _vectors_pb2.DenseVectors
    sparse: _vectors_pb2.SparseVectors
    multi_vector: _vectors_pb2.MultiVectors
    usage: _usage_pb2.Usage
    timing: _usage_pb2.Timing
    def __init__(self, model: _Optional[str] = ..., dense: _Optional[_Union[_vectors_pb2.DenseVectors, _Mapping]] = ..., sparse: _Optional[_Union[_vectors_pb2.SparseVectors, _Mapping]] = ..., multi_vector: _Optional[_Union[_vectors_pb2.MultiVectors, _Mapping]] = ..., usage: _Optional[_Union[_usage_pb2.Usage, _Mapping]] = ..., timing: _Optional[_Union[_usage_pb2.Timing, _Mapping]] = ...) -> None: ...

class EmbedStreamRequest(_message.Message):
    __slots__ = ("id", "request")
    ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    id: int
    request: EmbedRequest
    def __init__(self, id: _Optional[int] = ..., request: _Optional[_Union[EmbedRequest, _Mapping]] = ...) -> None: ...

class EmbedStreamResponse(_message.Message):
    __slots__ = ("id", "response", "error", "start", "more")
    ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    id: int
    response: EmbedResponse
    error: StreamError
    start: int
    more: bool
    def __init__(self, id: _Optional[int] = ..., response: _Optional[_Union[EmbedResponse, _Mapping]] = ..., error: _Optional[_Union[StreamError, _Mapping]] = ..., start: _Optional[int] = ..., more: bool = ...) -> None: ...

class StreamError(_message.Message):
    __slots__ = ("code", "reason", "message", "field", "retry_after")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    code: int
    reason: str
    message: str
    field: str
    retry_after: _duration_pb2.Duration
    def __init__(self, code: _Optional[int] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., field: _Optional[str] = ..., retry_after: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

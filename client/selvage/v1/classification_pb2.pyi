from selvage.v1 import usage_pb2 as _usage_pb2
from selvage.v1 import vectors_pb2 as _vectors_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClassifyRequest(_message.Message):
    __slots__ = ("model", "texts", "text_pairs", "prompt_name", "prompt", "normalize", "truncate", "max_tokens")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    TEXT_PAIRS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: str
    texts: _containers.RepeatedScalarFieldContainer[str]
    text_pairs: _containers.RepeatedScalarFieldContainer[str]
    prompt_name: str
    prompt: str
    normalize: bool
    truncate: bool
    max_tokens: int
    def __init__(self, model: _Optional[str] = ..., texts: _Optional[_Iterable[str]] = ..., text_pairs: _Optional[_Iterable[str]] = ..., prompt_name: _Optional[str] = ..., prompt: _Optional[str] = ..., normalize: bool = ..., truncate: bool = ..., max_tokens: _Optional[int] = ...) -> None: ...

class ClassifyResponse(_message.Message):
    __slots__ = ("model", "labels", "scores", "usage", "timing")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    model: str
    labels: _containers.RepeatedScalarFieldContainer[str]
    scores: _containers.RepeatedScalarFieldContainer[float]
    usage: _usage_pb2.Usage
    timing: _usage_pb2.Timing
    def __init__(self, model: _Optional[str] = ..., labels: _Optional[_Iterable[str]] = ..., scores: _Optional[_Iterable[float]] = ..., usage: _Optional[_Union[_usage_pb2.Usage, _Mapping]] = ..., timing: _Optional[_Union[_usage_pb2.Timing, _Mapping]] = ...) -> None: ...

class ClassifyTokensRequest(_message.Message):
    __slots__ = ("model", "texts", "prompt_name", "prompt", "token_id", "normalize", "truncate", "truncation_side", "max_tokens")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_SIDE_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: str
    texts: _containers.RepeatedScalarFieldContainer[str]
    prompt_name: str
    prompt: str
    token_id: int
    normalize: bool
    truncate: bool
    truncation_side: _vectors_pb2.TruncationSide
    max_tokens: int
    def __init__(self, model: _Optional[str] = ..., texts: _Optional[_Iterable[str]] = ..., prompt_name: _Optional[str] = ..., prompt: _Optional[str] = ..., token_id: _Optional[int] = ..., normalize: bool = ..., truncate: bool = ..., truncation_side: _Optional[_Union[_vectors_pb2.TruncationSide, str]] = ..., max_tokens: _Optional[int] = ...) -> None: ...

class ClassifyTokensResponse(_message.Message):
    __slots__ = ("model", "labels", "lengths", "scores", "token_ids", "starts", "ends", "usage", "timing")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    model: str
    labels: _containers.RepeatedScalarFieldContainer[str]
    lengths: _containers.RepeatedScalarFieldContainer[int]
    scores: _containers.RepeatedScalarFieldContainer[float]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    starts: _containers.RepeatedScalarFieldContainer[int]
    ends: _containers.RepeatedScalarFieldContainer[int]
    usage: _usage_pb2.Usage
    timing: _usage_pb2.Timing
    def __init__(self, model: _Optional[str] = ..., labels: _Optional[_Iterable[str]] = ..., lengths: _Optional[_Iterable[int]] = ..., scores: _Optional[_Iterable[float]] = ..., token_ids: _Optional[_Iterable[int]] = ..., starts: _Optional[_Iterable[int]] = ..., ends: _Optional[_Iterable[int]] = ..., usage: _Optional[_Union[_usage_pb2.Usage, _Mapping]] = ..., timing: _Optional[_Union[_usage_pb2.Timing, _Mapping]] = ...) -> None: ...

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "token_counts", "truncated")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNTS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    token_counts: _containers.RepeatedScalarFieldContainer[int]
    truncated: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, prompt_tokens: _Optional[int] = ..., token_counts: _Optional[_Iterable[int]] = ..., truncated: _Optional[_Iterable[bool]] = ...) -> None: ...

class Timing(_message.Message):
    __slots__ = ("tokenize", "queue", "compute", "transfer", "postprocess")
    TOKENIZE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    POSTPROCESS_FIELD_NUMBER: _ClassVar[int]
    tokenize: _duration_pb2.Duration
    queue: _duration_pb2.Duration
    compute: _duration_pb2.Duration
    transfer: _duration_pb2.Duration
    postprocess: _duration_pb2.Duration
    def __init__(self, tokenize: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., queue: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., compute: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., transfer: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., postprocess: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

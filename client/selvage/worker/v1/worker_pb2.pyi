from google.protobuf import duration_pb2 as _duration_pb2
from selvage.v1 import model_pb2 as _model_pb2
from selvage.v1 import ranking_pb2 as _ranking_pb2
from selvage.v1 import vectors_pb2 as _vectors_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIORITY_UNSPECIFIED: _ClassVar[Priority]
    PRIORITY_INTERACTIVE: _ClassVar[Priority]
    PRIORITY_DEFAULT: _ClassVar[Priority]
    PRIORITY_BULK: _ClassVar[Priority]

class ChunkKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHUNK_KIND_UNSPECIFIED: _ClassVar[ChunkKind]
    CHUNK_KIND_DENSE: _ClassVar[ChunkKind]
    CHUNK_KIND_DENSE_SCALES: _ClassVar[ChunkKind]
    CHUNK_KIND_MULTI_VECTOR: _ClassVar[ChunkKind]
    CHUNK_KIND_MULTI_VECTOR_SCALES: _ClassVar[ChunkKind]
    CHUNK_KIND_SCORES: _ClassVar[ChunkKind]
    CHUNK_KIND_SPARSE_INDICES: _ClassVar[ChunkKind]
    CHUNK_KIND_SPARSE_VALUES: _ClassVar[ChunkKind]
    CHUNK_KIND_TOKEN_IDS: _ClassVar[ChunkKind]
    CHUNK_KIND_WINNERS: _ClassVar[ChunkKind]
    CHUNK_KIND_SIMILARITIES: _ClassVar[ChunkKind]
PRIORITY_UNSPECIFIED: Priority
PRIORITY_INTERACTIVE: Priority
PRIORITY_DEFAULT: Priority
PRIORITY_BULK: Priority
CHUNK_KIND_UNSPECIFIED: ChunkKind
CHUNK_KIND_DENSE: ChunkKind
CHUNK_KIND_DENSE_SCALES: ChunkKind
CHUNK_KIND_MULTI_VECTOR: ChunkKind
CHUNK_KIND_MULTI_VECTOR_SCALES: ChunkKind
CHUNK_KIND_SCORES: ChunkKind
CHUNK_KIND_SPARSE_INDICES: ChunkKind
CHUNK_KIND_SPARSE_VALUES: ChunkKind
CHUNK_KIND_TOKEN_IDS: ChunkKind
CHUNK_KIND_WINNERS: ChunkKind
CHUNK_KIND_SIMILARITIES: ChunkKind

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("card", "message_bytes", "queued_tokens", "queue_seconds", "adapters")
    CARD_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    QUEUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    card: _model_pb2.ModelCard
    message_bytes: int
    queued_tokens: int
    queue_seconds: float
    adapters: _containers.RepeatedCompositeFieldContainer[_model_pb2.ModelCard]
    def __init__(self, card: _Optional[_Union[_model_pb2.ModelCard, _Mapping]] = ..., message_bytes: _Optional[int] = ..., queued_tokens: _Optional[int] = ..., queue_seconds: _Optional[float] = ..., adapters: _Optional[_Iterable[_Union[_model_pb2.ModelCard, _Mapping]]] = ...) -> None: ...

class GetTokenizerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetTokenizerResponse(_message.Message):
    __slots__ = ("name", "data")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    data: bytes
    def __init__(self, name: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class AttachRequest(_message.Message):
    __slots__ = ("hello", "fingerprint", "token_ids", "lengths", "jobs", "cancels")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    CANCELS_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    fingerprint: str
    token_ids: bytes
    lengths: _containers.RepeatedScalarFieldContainer[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    cancels: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., fingerprint: _Optional[str] = ..., token_ids: _Optional[bytes] = ..., lengths: _Optional[_Iterable[int]] = ..., jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., cancels: _Optional[_Iterable[int]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("version", "name", "fingerprint")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    version: int
    name: str
    fingerprint: str
    def __init__(self, version: _Optional[int] = ..., name: _Optional[str] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class AttachResponse(_message.Message):
    __slots__ = ("welcome", "answers", "load")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    answers: _containers.RepeatedCompositeFieldContainer[AnswerPart]
    load: Load
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., answers: _Optional[_Iterable[_Union[AnswerPart, _Mapping]]] = ..., load: _Optional[_Union[Load, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("version", "instance", "fingerprint")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    version: int
    instance: str
    fingerprint: str
    def __init__(self, version: _Optional[int] = ..., instance: _Optional[str] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("queued_tokens", "queued_jobs", "tokens_per_second", "backlogs", "draining", "stalled", "turn", "busy_seconds", "express_tokens", "step_tokens", "others", "coming")
    QUEUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_JOBS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    BACKLOGS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    STALLED_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    BUSY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    EXPRESS_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STEP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    COMING_FIELD_NUMBER: _ClassVar[int]
    queued_tokens: int
    queued_jobs: int
    tokens_per_second: float
    backlogs: _containers.RepeatedCompositeFieldContainer[Backlog]
    draining: bool
    stalled: str
    turn: int
    busy_seconds: float
    express_tokens: int
    step_tokens: int
    others: float
    coming: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, queued_tokens: _Optional[int] = ..., queued_jobs: _Optional[int] = ..., tokens_per_second: _Optional[float] = ..., backlogs: _Optional[_Iterable[_Union[Backlog, _Mapping]]] = ..., draining: bool = ..., stalled: _Optional[str] = ..., turn: _Optional[int] = ..., busy_seconds: _Optional[float] = ..., express_tokens: _Optional[int] = ..., step_tokens: _Optional[int] = ..., others: _Optional[float] = ..., coming: _Optional[_Iterable[float]] = ...) -> None: ...

class Backlog(_message.Message):
    __slots__ = ("priority", "keys", "tokens", "jobs", "long_jobs", "long_tokens")
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    LONG_JOBS_FIELD_NUMBER: _ClassVar[int]
    LONG_TOKENS_FIELD_NUMBER: _ClassVar[int]
    priority: Priority
    keys: int
    tokens: int
    jobs: int
    long_jobs: int
    long_tokens: int
    def __init__(self, priority: _Optional[_Union[Priority, str]] = ..., keys: _Optional[int] = ..., tokens: _Optional[int] = ..., jobs: _Optional[int] = ..., long_jobs: _Optional[int] = ..., long_tokens: _Optional[int] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("id", "sequences", "remaining", "priority", "prompt_lengths", "second_segment_starts", "unattended_tails", "key", "request_id", "encode", "score", "max_sim", "classify", "traceparent", "range_counts", "range_starts", "range_stops", "fingerprint")
    ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    SECOND_SEGMENT_STARTS_FIELD_NUMBER: _ClassVar[int]
    UNATTENDED_TAILS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ENCODE_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    MAX_SIM_FIELD_NUMBER: _ClassVar[int]
    CLASSIFY_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    RANGE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    RANGE_STARTS_FIELD_NUMBER: _ClassVar[int]
    RANGE_STOPS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    id: int
    sequences: int
    remaining: _duration_pb2.Duration
    priority: Priority
    prompt_lengths: _containers.RepeatedScalarFieldContainer[int]
    second_segment_starts: _containers.RepeatedScalarFieldContainer[int]
    unattended_tails: _containers.RepeatedScalarFieldContainer[int]
    key: str
    request_id: str
    encode: EncodeOptions
    score: ScoreOptions
    max_sim: MaxSimOptions
    classify: ClassifyOptions
    traceparent: str
    range_counts: _containers.RepeatedScalarFieldContainer[int]
    range_starts: _containers.RepeatedScalarFieldContainer[int]
    range_stops: _containers.RepeatedScalarFieldContainer[int]
    fingerprint: str
    def __init__(self, id: _Optional[int] = ..., sequences: _Optional[int] = ..., remaining: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., priority: _Optional[_Union[Priority, str]] = ..., prompt_lengths: _Optional[_Iterable[int]] = ..., second_segment_starts: _Optional[_Iterable[int]] = ..., unattended_tails: _Optional[_Iterable[int]] = ..., key: _Optional[str] = ..., request_id: _Optional[str] = ..., encode: _Optional[_Union[EncodeOptions, _Mapping]] = ..., score: _Optional[_Union[ScoreOptions, _Mapping]] = ..., max_sim: _Optional[_Union[MaxSimOptions, _Mapping]] = ..., classify: _Optional[_Union[ClassifyOptions, _Mapping]] = ..., traceparent: _Optional[str] = ..., range_counts: _Optional[_Iterable[int]] = ..., range_starts: _Optional[_Iterable[int]] = ..., range_stops: _Optional[_Iterable[int]] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class EncodeOptions(_message.Message):
    __slots__ = ("outputs", "dimensions", "normalize", "data_type", "normalize_tokens", "sparse_top_k", "token_ids", "input_type", "pooling")
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SPARSE_TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    INPUT_TYPE_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    outputs: _containers.RepeatedScalarFieldContainer[_vectors_pb2.OutputKind]
    dimensions: int
    normalize: bool
    data_type: _vectors_pb2.DataType
    normalize_tokens: bool
    sparse_top_k: int
    token_ids: bool
    input_type: _vectors_pb2.InputType
    pooling: _model_pb2.TokenPooling
    def __init__(self, outputs: _Optional[_Iterable[_Union[_vectors_pb2.OutputKind, str]]] = ..., dimensions: _Optional[int] = ..., normalize: bool = ..., data_type: _Optional[_Union[_vectors_pb2.DataType, str]] = ..., normalize_tokens: bool = ..., sparse_top_k: _Optional[int] = ..., token_ids: bool = ..., input_type: _Optional[_Union[_vectors_pb2.InputType, str]] = ..., pooling: _Optional[_Union[_model_pb2.TokenPooling, _Mapping]] = ...) -> None: ...

class ScoreOptions(_message.Message):
    __slots__ = ("method", "layout", "queries", "unit_rows", "mean", "weights", "explain", "pooling")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    UNIT_ROWS_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    method: _vectors_pb2.ScoringMethod
    layout: _vectors_pb2.Layout
    queries: int
    unit_rows: bool
    mean: bool
    weights: _ranking_pb2.HybridWeights
    explain: bool
    pooling: _model_pb2.TokenPooling
    def __init__(self, method: _Optional[_Union[_vectors_pb2.ScoringMethod, str]] = ..., layout: _Optional[_Union[_vectors_pb2.Layout, str]] = ..., queries: _Optional[int] = ..., unit_rows: bool = ..., mean: bool = ..., weights: _Optional[_Union[_ranking_pb2.HybridWeights, _Mapping]] = ..., explain: bool = ..., pooling: _Optional[_Union[_model_pb2.TokenPooling, _Mapping]] = ...) -> None: ...

class ClassifyOptions(_message.Message):
    __slots__ = ("tokens", "token_id")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    tokens: bool
    token_id: int
    def __init__(self, tokens: bool = ..., token_id: _Optional[int] = ...) -> None: ...

class MaxSimOptions(_message.Message):
    __slots__ = ("queries", "documents", "layout", "unit_rows", "mean", "explain", "unit_queries")
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    UNIT_ROWS_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    UNIT_QUERIES_FIELD_NUMBER: _ClassVar[int]
    queries: _vectors_pb2.MultiVectors
    documents: _vectors_pb2.MultiVectors
    layout: _vectors_pb2.Layout
    unit_rows: bool
    mean: bool
    explain: bool
    unit_queries: bool
    def __init__(self, queries: _Optional[_Union[_vectors_pb2.MultiVectors, _Mapping]] = ..., documents: _Optional[_Union[_vectors_pb2.MultiVectors, _Mapping]] = ..., layout: _Optional[_Union[_vectors_pb2.Layout, str]] = ..., unit_rows: bool = ..., mean: bool = ..., explain: bool = ..., unit_queries: bool = ...) -> None: ...

class AnswerPart(_message.Message):
    __slots__ = ("job_id", "chunks", "end")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    job_id: int
    chunks: _containers.RepeatedCompositeFieldContainer[Chunk]
    end: JobEnd
    def __init__(self, job_id: _Optional[int] = ..., chunks: _Optional[_Iterable[_Union[Chunk, _Mapping]]] = ..., end: _Optional[_Union[JobEnd, _Mapping]] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("kind", "data")
    KIND_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    kind: ChunkKind
    data: bytes
    def __init__(self, kind: _Optional[_Union[ChunkKind, str]] = ..., data: _Optional[bytes] = ...) -> None: ...

class JobEnd(_message.Message):
    __slots__ = ("error", "dense_dimensions", "row_lengths", "queue", "compute", "token_dimensions", "sparse_lengths")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DENSE_DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    ROW_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    SPARSE_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    error: JobError
    dense_dimensions: int
    row_lengths: _containers.RepeatedScalarFieldContainer[int]
    queue: _duration_pb2.Duration
    compute: _duration_pb2.Duration
    token_dimensions: int
    sparse_lengths: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, error: _Optional[_Union[JobError, _Mapping]] = ..., dense_dimensions: _Optional[int] = ..., row_lengths: _Optional[_Iterable[int]] = ..., queue: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., compute: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., token_dimensions: _Optional[int] = ..., sparse_lengths: _Optional[_Iterable[int]] = ...) -> None: ...

class JobError(_message.Message):
    __slots__ = ("reason", "message", "field", "retry_after")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    field: str
    retry_after: _duration_pb2.Duration
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ..., field: _Optional[str] = ..., retry_after: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

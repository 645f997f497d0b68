from selvage.v1 import usage_pb2 as _usage_pb2
from selvage.v1 import vectors_pb2 as _vectors_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HybridWeights(_message.Message):
    __slots__ = ("dense", "sparse", "multi_vector")
    DENSE_FIELD_NUMBER: _ClassVar[int]
    SPARSE_FIELD_NUMBER: _ClassVar[int]
    MULTI_VECTOR_FIELD_NUMBER: _ClassVar[int]
    dense: float
    sparse: float
    multi_vector: float
    def __init__(self, dense: _Optional[float] = ..., sparse: _Optional[float] = ..., multi_vector: _Optional[float] = ...) -> None: ...

class RerankRequest(_message.Message):
    __slots__ = ("model", "query", "documents", "top_n", "return_documents", "method", "weights", "normalize", "instruction", "max_tokens_per_query", "max_tokens_per_document", "truncate", "explain", "part_of_list", "pool_factor", "protected_tokens")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    TOP_N_FIELD_NUMBER: _ClassVar[int]
    RETURN_DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_PER_QUERY_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_PER_DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    PART_OF_LIST_FIELD_NUMBER: _ClassVar[int]
    POOL_FACTOR_FIELD_NUMBER: _ClassVar[int]
    PROTECTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: str
    query: str
    documents: _containers.RepeatedScalarFieldContainer[str]
    top_n: int
    return_documents: bool
    method: _vectors_pb2.ScoringMethod
    weights: HybridWeights
    normalize: bool
    instruction: str
    max_tokens_per_query: int
    max_tokens_per_document: int
    truncate: bool
    explain: bool
    part_of_list: bool
    pool_factor: float
    protected_tokens: int
    def __init__(self, model: _Optional[str] = ..., query: _Optional[str] = ..., documents: _Optional[_Iterable[str]] = ..., top_n: _Optional[int] = ..., return_documents: bool = ..., method: _Optional[_Union[_vectors_pb2.ScoringMethod, str]] = ..., weights: _Optional[_Union[HybridWeights, _Mapping]] = ..., normalize: bool = ..., instruction: _Optional[str] = ..., max_tokens_per_query: _Optional[int] = ..., max_tokens_per_document: _Optional[int] = ..., truncate: bool = ..., explain: bool = ..., part_of_list: bool = ..., pool_factor: _Optional[float] = ..., protected_tokens: _Optional[int] = ...) -> None: ...

class TokenMatch(_message.Message):
    __slots__ = ("query_token", "document_token", "document_position", "similarity")
    QUERY_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_POSITION_FIELD_NUMBER: _ClassVar[int]
    SIMILARITY_FIELD_NUMBER: _ClassVar[int]
    query_token: str
    document_token: str
    document_position: int
    similarity: float
    def __init__(self, query_token: _Optional[str] = ..., document_token: _Optional[str] = ..., document_position: _Optional[int] = ..., similarity: _Optional[float] = ...) -> None: ...

class RerankResult(_message.Message):
    __slots__ = ("index", "score", "document", "explanation", "logit")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    LOGIT_FIELD_NUMBER: _ClassVar[int]
    index: int
    score: float
    document: str
    explanation: _containers.RepeatedCompositeFieldContainer[TokenMatch]
    logit: float
    def __init__(self, index: _Optional[int] = ..., score: _Optional[float] = ..., document: _Optional[str] = ..., explanation: _Optional[_Iterable[_Union[TokenMatch, _Mapping]]] = ..., logit: _Optional[float] = ...) -> None: ...

class RerankResponse(_message.Message):
    __slots__ = ("model", "results", "usage", "timing")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    model: str
    results: _containers.RepeatedCompositeFieldContainer[RerankResult]
    usage: _usage_pb2.Usage
    timing: _usage_pb2.Timing
    def __init__(self, model: _Optional[str] = ..., results: _Optional[_Iterable[_Union[RerankResult, _Mapping]]] = ..., usage: _Optional[_Union[_usage_pb2.Usage, _Mapping]] = ..., timing: _Optional[_Union[_usage_pb2.Timing, _Mapping]] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("model", "queries", "documents", "layout", "method", "weights", "normalize", "instruction", "max_tokens_per_query", "max_tokens_per_document", "truncate", "part_of_list", "pool_factor", "protected_tokens")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_PER_QUERY_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_PER_DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    PART_OF_LIST_FIELD_NUMBER: _ClassVar[int]
    POOL_FACTOR_FIELD_NUMBER: _ClassVar[int]
    PROTECTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: str
    queries: _containers.RepeatedScalarFieldContainer[str]
    documents: _containers.RepeatedScalarFieldContainer[str]
    layout: _vectors_pb2.Layout
    method: _vectors_pb2.ScoringMethod
    weights: HybridWeights
    normalize: bool
    instruction: str
    max_tokens_per_query: int
    max_tokens_per_document: int
    truncate: bool
    part_of_list: bool
    pool_factor: float
    protected_tokens: int
    def __init__(self, model: _Optional[str] = ..., queries: _Optional[_Iterable[str]] = ..., documents: _Optional[_Iterable[str]] = ..., layout: _Optional[_Union[_vectors_pb2.Layout, str]] = ..., method: _Optional[_Union[_vectors_pb2.ScoringMethod, str]] = ..., weights: _Optional[_Union[HybridWeights, _Mapping]] = ..., normalize: bool = ..., instruction: _Optional[str] = ..., max_tokens_per_query: _Optional[int] = ..., max_tokens_per_document: _Optional[int] = ..., truncate: bool = ..., part_of_list: bool = ..., pool_factor: _Optional[float] = ..., protected_tokens: _Optional[int] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("model", "scores", "rows", "columns", "usage", "timing")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    model: str
    scores: _containers.RepeatedScalarFieldContainer[float]
    rows: int
    columns: int
    usage: _usage_pb2.Usage
    timing: _usage_pb2.Timing
    def __init__(self, model: _Optional[str] = ..., scores: _Optional[_Iterable[float]] = ..., rows: _Optional[int] = ..., columns: _Optional[int] = ..., usage: _Optional[_Union[_usage_pb2.Usage, _Mapping]] = ..., timing: _Optional[_Union[_usage_pb2.Timing, _Mapping]] = ...) -> None: ...

class MaxSimRequest(_message.Message):
    __slots__ = ("queries", "documents", "layout", "normalize", "explain", "query_texts", "model", "instruction", "max_tokens_per_query", "truncate")
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    QUERY_TEXTS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_PER_QUERY_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    queries: _vectors_pb2.MultiVectors
    documents: _vectors_pb2.MultiVectors
    layout: _vectors_pb2.Layout
    normalize: bool
    explain: bool
    query_texts: _containers.RepeatedScalarFieldContainer[str]
    model: str
    instruction: str
    max_tokens_per_query: int
    truncate: bool
    def __init__(self, queries: _Optional[_Union[_vectors_pb2.MultiVectors, _Mapping]] = ..., documents: _Optional[_Union[_vectors_pb2.MultiVectors, _Mapping]] = ..., layout: _Optional[_Union[_vectors_pb2.Layout, str]] = ..., normalize: bool = ..., explain: bool = ..., query_texts: _Optional[_Iterable[str]] = ..., model: _Optional[str] = ..., instruction: _Optional[str] = ..., max_tokens_per_query: _Optional[int] = ..., truncate: bool = ...) -> None: ...

class MaxSimResponse(_message.Message):
    __slots__ = ("scores", "rows", "columns", "timing", "model", "usage", "winners", "similarities")
    SCORES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    WINNERS_FIELD_NUMBER: _ClassVar[int]
    SIMILARITIES_FIELD_NUMBER: _ClassVar[int]
    scores: _containers.RepeatedScalarFieldContainer[float]
    rows: int
    columns: int
    timing: _usage_pb2.Timing
    model: str
    usage: _usage_pb2.Usage
    winners: _containers.RepeatedScalarFieldContainer[int]
    similarities: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, scores: _Optional[_Iterable[float]] = ..., rows: _Optional[int] = ..., columns: _Optional[int] = ..., timing: _Optional[_Union[_usage_pb2.Timing, _Mapping]] = ..., model: _Optional[str] = ..., usage: _Optional[_Union[_usage_pb2.Usage, _Mapping]] = ..., winners: _Optional[_Iterable[int]] = ..., similarities: _Optional[_Iterable[float]] = ...) -> None: ...

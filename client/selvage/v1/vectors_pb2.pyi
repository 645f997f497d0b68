from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DataType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DATA_TYPE_UNSPECIFIED: _ClassVar[DataType]
    DATA_TYPE_FLOAT32: _ClassVar[DataType]
    DATA_TYPE_FLOAT16: _ClassVar[DataType]
    DATA_TYPE_BFLOAT16: _ClassVar[DataType]
    DATA_TYPE_INT8: _ClassVar[DataType]
    DATA_TYPE_BINARY: _ClassVar[DataType]

class OutputKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTPUT_KIND_UNSPECIFIED: _ClassVar[OutputKind]
    OUTPUT_KIND_DENSE: _ClassVar[OutputKind]
    OUTPUT_KIND_SPARSE: _ClassVar[OutputKind]
    OUTPUT_KIND_MULTI_VECTOR: _ClassVar[OutputKind]

class InputType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INPUT_TYPE_UNSPECIFIED: _ClassVar[InputType]
    INPUT_TYPE_QUERY: _ClassVar[InputType]
    INPUT_TYPE_DOCUMENT: _ClassVar[InputType]

class TruncationSide(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRUNCATION_SIDE_UNSPECIFIED: _ClassVar[TruncationSide]
    TRUNCATION_SIDE_RIGHT: _ClassVar[TruncationSide]
    TRUNCATION_SIDE_LEFT: _ClassVar[TruncationSide]

class ScoringMethod(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCORING_METHOD_UNSPECIFIED: _ClassVar[ScoringMethod]
    SCORING_METHOD_CROSS_ENCODER: _ClassVar[ScoringMethod]
    SCORING_METHOD_LATE_INTERACTION: _ClassVar[ScoringMethod]
    SCORING_METHOD_DENSE: _ClassVar[ScoringMethod]
    SCORING_METHOD_SPARSE: _ClassVar[ScoringMethod]
    SCORING_METHOD_HYBRID: _ClassVar[ScoringMethod]
    SCORING_METHOD_LISTWISE: _ClassVar[ScoringMethod]

class Layout(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LAYOUT_UNSPECIFIED: _ClassVar[Layout]
    LAYOUT_PAIRS: _ClassVar[Layout]
    LAYOUT_MATRIX: _ClassVar[Layout]
DATA_TYPE_UNSPECIFIED: DataType
DATA_TYPE_FLOAT32: DataType
DATA_TYPE_FLOAT16: DataType
DATA_TYPE_BFLOAT16: DataType
DATA_TYPE_INT8: DataType
DATA_TYPE_BINARY: DataType
OUTPUT_KIND_UNSPECIFIED: OutputKind
OUTPUT_KIND_DENSE: OutputKind
OUTPUT_KIND_SPARSE: OutputKind
OUTPUT_KIND_MULTI_VECTOR: OutputKind
INPUT_TYPE_UNSPECIFIED: InputType
INPUT_TYPE_QUERY: InputType
INPUT_TYPE_DOCUMENT: InputType
TRUNCATION_SIDE_UNSPECIFIED: TruncationSide
TRUNCATION_SIDE_RIGHT: TruncationSide
TRUNCATION_SIDE_LEFT: TruncationSide
SCORING_METHOD_UNSPECIFIED: ScoringMethod
SCORING_METHOD_CROSS_ENCODER: ScoringMethod
SCORING_METHOD_LATE_INTERACTION: ScoringMethod
SCORING_METHOD_DENSE: ScoringMethod
SCORING_METHOD_SPARSE: ScoringMethod
SCORING_METHOD_HYBRID: ScoringMethod
SCORING_METHOD_LISTWISE: ScoringMethod
LAYOUT_UNSPECIFIED: Layout
LAYOUT_PAIRS: Layout
LAYOUT_MATRIX: Layout

class DenseVectors(_message.Message):
    __slots__ = ("data_type", "count", "dimensions", "data", "scales")
    DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SCALES_FIELD_NUMBER: _ClassVar[int]
    data_type: DataType
    count: int
    dimensions: int
    data: bytes
    scales: bytes
    def __init__(self, data_type: _Optional[_Union[DataType, str]] = ..., count: _Optional[int] = ..., dimensions: _Optional[int] = ..., data: _Optional[bytes] = ..., scales: _Optional[bytes] = ...) -> None: ...

class SparseVectors(_message.Message):
    __slots__ = ("lengths", "indices", "values")
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    lengths: _containers.RepeatedScalarFieldContainer[int]
    indices: _containers.RepeatedScalarFieldContainer[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, lengths: _Optional[_Iterable[int]] = ..., indices: _Optional[_Iterable[int]] = ..., values: _Optional[_Iterable[float]] = ...) -> None: ...

class MultiVectors(_message.Message):
    __slots__ = ("data_type", "dimensions", "lengths", "data", "scales", "token_ids")
    DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SCALES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    data_type: DataType
    dimensions: int
    lengths: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    scales: bytes
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, data_type: _Optional[_Union[DataType, str]] = ..., dimensions: _Optional[int] = ..., lengths: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ..., scales: _Optional[bytes] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

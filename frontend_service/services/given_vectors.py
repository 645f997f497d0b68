"""The vectors that a MaxSim brings, and their checks. Knows no API. numpy; `check_finite` runs in threads."""

import numpy as np

from frontend_service.domain.ranking_requests import MaxSimRequest
from shared.errors import DimensionMismatch, InvalidInput
from shared.vectors import DataType, MultiVectors


def vectors_of(request: MaxSimRequest) -> dict[str, MultiVectors]:
    """The vectors in a request, by field."""
    sides = {"queries": request.queries, "documents": request.documents}
    return {field: vectors for field, vectors in sides.items() if vectors is not None}


def check_dimensions(queries: MultiVectors, documents: MultiVectors) -> None:
    """Raises DimensionMismatch where the two sides cannot be compared."""
    if queries.dimensions != documents.dimensions:
        raise DimensionMismatch(
            f"queries have {queries.dimensions} dimensions, documents {documents.dimensions}",
            field="documents.dimensions",
        )


def check_finite(sides: dict[str, MultiVectors]) -> None:
    """Raises InvalidInput, naming the side, where vectors hold NaN or infinity, or products of both may overflow."""
    largest = {field: _largest(vectors) for field, vectors in sides.items()}
    for field, value in largest.items():
        if not np.isfinite(value):
            raise InvalidInput(f"{field} holds NaN or infinity", field=f"{field}.data")
    field, vectors = list(sides.items())[-1]
    if np.prod(list(largest.values())) * vectors.dimensions > np.finfo(np.float32).max:
        raise InvalidInput("products of the given vectors may overflow float32", field=f"{field}.data")


def _largest(vectors: MultiVectors) -> float:
    """The largest magnitude of a number in the vectors; NaN or infinity if one is there."""
    match vectors.data_type:
        case DataType.FLOAT32:
            values = np.frombuffer(vectors.data, dtype="<f4")
        case DataType.FLOAT16:
            values = np.frombuffer(vectors.data, dtype="<f2")
        case DataType.BFLOAT16:
            magnitudes = np.frombuffer(vectors.data, dtype="<u2") & 0x7FFF  # ordered as the numbers are, NaN last
            return float((magnitudes.max(initial=0).astype(np.uint32) << 16).view(np.float32))
        case DataType.INT8:
            values = np.frombuffer(vectors.scales, dtype="<f4") * 128
        case DataType.BINARY:
            return 1.0
    return float(max(values.max(initial=0), -values.min(initial=0)))

"""pyarrow where something needs it."""

from typing import Any

from selvage.bulk.failures import Failed


def pyarrow(purpose: str) -> tuple[Any, Any]:
    """`pyarrow` and `pyarrow.parquet`. Raises Failed with what installs them."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise Failed(f"{purpose} needs pyarrow: pip install 'selvage[bulk]'") from error
    return pyarrow, pyarrow.parquet

"""docs/operating.md has every error and every limit, as they are in the code."""

import re
from dataclasses import asdict
from pathlib import Path

import pytest

from frontend_service.api.http.error_replies import status_of
from frontend_service.domain.limits import Limits
from frontend_service.settings import FrontendSettings
from shared.errors import GivenBack, error_classes
from shared.server.options import REQUEST_BYTES

PAGE = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()


def test_every_error_is_there_with_its_statuses() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (\d+) \|", PAGE, flags=re.MULTILINE)
    classes = [each for each in error_classes().values() if each is not GivenBack]
    assert sorted(rows) == sorted((each.reason, each.status, str(status_of(each("")))) for each in classes)


@pytest.mark.parametrize(
    ("limit", "default"), [(name, value) for name, value in asdict(Limits()).items() if name != "auto_truncate"]
)
def test_every_limit_is_there_with_its_default(limit: str, default: int) -> None:
    """And the setting that moves it, where there is one."""
    setting = f"max_{limit}"
    flag = f"`--{setting.replace('_', '-')}` " if setting in FrontendSettings.model_fields else ""
    assert f"| {default:,} | {flag}|" in PAGE


def test_the_size_of_a_message_is_there() -> None:
    assert f"| bytes of a message over gRPC | {REQUEST_BYTES:,} | |" in PAGE

"""How many examples of a property are tried."""

from hypothesis import settings


def examples(most: int) -> settings:
    """So many, or as few as the profile wants where tests are run a second time; see tests/conftest.py."""
    return settings(max_examples=min(most, settings.default.max_examples))

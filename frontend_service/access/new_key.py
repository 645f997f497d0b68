"""Makes an API key: `python -m frontend_service.access.new_key NAME` prints it once.

The entry for the file of keys, which holds its hash, is printed beside it.
"""

import argparse
import json
import secrets
import sys

from frontend_service.access.api_keys import LONGEST_NAME, hashed
from shared.jobs import PRIORITIES

PREFIX = "sv-"
"""By which scanners of sources may find a key that was left there."""
BYTES = 32
"""Of chance."""


def main(arguments: list[str]) -> int:
    """Prints the key to standard error, and its entry to standard output, so that `>> keys.toml` takes that alone."""
    asked = _parser().parse_args(arguments)
    secret = PREFIX + secrets.token_urlsafe(BYTES)
    entry = {"name": asked.name, "sha256": hashed(secret), "priority": asked.priority}
    if asked.requests_at_once is not None:
        entry["requests_at_once"] = asked.requests_at_once
    print(f"The key of {asked.name}, told only now: {secret}", file=sys.stderr)
    print("[[keys]]")
    for name, value in entry.items():
        print(f"{name} = {json.dumps(value, ensure_ascii=False)}")  # of words and numbers the same as TOML's
    print()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m frontend_service.access.new_key",
        description="Makes an API key. The key goes to standard error, once; the entry for the file that --api-keys "
        "names goes to standard output, and holds its hash only: add it with >> keys.toml.",
    )
    parser.add_argument("name", metavar="NAME", type=_name, help="whose key it is, for the file's readers")
    parser.add_argument(
        "--priority",
        choices=list(PRIORITIES),
        default="default",
        help="the most urgent that its calls may be (default %(default)s)",
    )
    parser.add_argument(
        "--requests-at-once",
        metavar="COUNT",
        type=_count,
        help="requests that are answered at once (default: no limit)",
    )
    return parser


def _name(value: str) -> str:
    if not (value.isprintable() and 0 < len(value) <= LONGEST_NAME):
        raise argparse.ArgumentTypeError(f"must be 1 to {LONGEST_NAME} letters that can be printed")
    return value


def _count(value: str) -> int:
    if not (value.isdecimal() and int(value)):
        raise argparse.ArgumentTypeError("must be a number of at least 1")
    return int(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Makes an API key: `python -m frontend_service.access.new_key NAME` prints it once.

The entry for the file of keys, which holds only the key's hash, is printed as well.
"""

from shared.command import CommandParser, begin

if __name__ == "__main__":
    begin("frontend")

import argparse
import json
import secrets
import sys

from frontend_service.access.api_keys import LONGEST_NAME, hashed
from shared.jobs import PRIORITIES

PREFIX = "sv-"
"""Prefix of every key, by which scanners find keys that were left in source code."""
BYTES = 32
"""Random bytes of a key."""


def main(arguments: list[str]) -> int:
    """Prints the key to standard error, and its entry to standard output: `>> keys.toml` adds only the entry."""
    options = _parser().parse_args(arguments)
    secret = PREFIX + secrets.token_urlsafe(BYTES)
    entry = {"name": options.name, "sha256": hashed(secret), "priority": options.priority}
    limits = {"requests_at_once": options.requests_at_once, "streams_at_once": options.streams_at_once}
    entry |= {name: limit for name, limit in limits.items() if limit is not None}
    print(f"The key of {options.name}, told only now: {secret}", file=sys.stderr)
    print("[[keys]]")
    for name, value in entry.items():
        print(f"{name} = {json.dumps(value, ensure_ascii=False)}")  # JSON writes words and numbers as TOML does
    print()
    return 0


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="python -m frontend_service.access.new_key",
        description="Makes an API key. The key is printed once, to standard error; the entry for the file that "
        "--api-keys names is printed to standard output, and holds only the key's hash: add it with >> keys.toml.",
    )
    parser.add_argument("name", metavar="NAME", type=_name, help="name of the key, for people who read the file")
    parser.add_argument(
        "--priority",
        choices=list(PRIORITIES),
        default="default",
        help="most urgent priority that its calls may use (default %(default)s)",
    )
    parser.add_argument(
        "--requests-at-once",
        metavar="COUNT",
        type=_count,
        help="most requests in progress (default: no limit)",
    )
    parser.add_argument(
        "--streams-at-once",
        metavar="COUNT",
        type=_count,
        help="most open streams (default: --requests-at-once)",
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

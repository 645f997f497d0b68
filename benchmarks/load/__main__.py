"""Drives the pickled `Load` of standard input, and prints what was measured as a line of JSON: see `generated`."""

import asyncio
import json
import pickle
import sys

from benchmarks.load.generator import drive
from benchmarks.load.loops import LoadFailed

try:
    print(json.dumps(asyncio.run(drive(pickle.load(sys.stdin.buffer)))))
except LoadFailed as failure:
    sys.exit(str(failure))

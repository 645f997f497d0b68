"""Measures the memory of this process, and gives free memory back. Standard library only.

Works on Linux with glibc; elsewhere the size is 0 and nothing is given back.
"""

import ctypes
import os

ARENA_MAX, MMAP_THRESHOLD = -8, -3
"""Parameters of `mallopt`; malloc.h."""
LARGE_BYTES = 1024 * 1024


def memory_taken() -> int:
    """Resident memory of this process in bytes; see proc(5)."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def give_back_large_blocks() -> None:
    """From now on blocks of a mebibyte and more go back to the system as soon as they are freed.

    By default glibc learns to keep blocks of up to 32 MiB, in as many arenas as threads: a frontend that once read
    some large requests would keep a gigabyte for ever.
    """
    _call("mallopt", ARENA_MAX, 2)
    _call("mallopt", MMAP_THRESHOLD, LARGE_BYTES)


def give_back_what_is_free() -> None:
    """Gives free pages back to the system, those between small blocks included. Takes milliseconds."""
    _call("malloc_trim", 0)


def _call(name: str, *arguments: int) -> None:
    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function(*arguments)

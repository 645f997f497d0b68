"""Measures the memory of this process and of its machine, and gives free memory back. Standard library only.

Works on Linux with glibc; elsewhere the size of the process is 0 and nothing is given back.
"""

import ctypes
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ARENA_MAX, MMAP_THRESHOLD = -8, -3
"""Parameters of `mallopt`; malloc.h."""
LARGE_BYTES = 1024 * 1024
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Files in which Linux tells a container its limit of memory, by version 2 and 1 of cgroups."""


def memory_taken() -> int:
    """Resident memory of this process in bytes; see proc(5)."""
    for _ in range(2):
        try:
            return int(os.pread(_statm(os.getpid()), 256, 0).split()[1]) * PAGE_BYTES
        except (OSError, ValueError, IndexError):
            _statm.cache_clear()  # it is opened once more
    return 0


@cache
def _statm(pid: int) -> int:
    """A descriptor of the file with the memory of a process. It stays open: every request that comes alone reads it,
    and opening it takes ten times as long as reading. A forked process has another id, and opens its own.

    Others may close it, as a library that closes all descriptors after a fork does, and its number may then be another
    file's. So it is forgotten, and never closed, where it cannot be read: closing would take that file from its owner.
    """
    return os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)


def machine_memory(limits: Iterable[Path] = CONTAINER_LIMITS) -> int:
    """Bytes of memory that this machine has, or its container if that may have less. `limits`: files with the
    container's limit as a number of bytes; files that are missing or hold no number are passed over."""
    sizes = [PAGE_BYTES * os.sysconf("SC_PHYS_PAGES")]
    for path in limits:
        try:
            sizes.append(int(path.read_text()))
        except (OSError, ValueError):
            continue
    return min(sizes)


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

"""How this process gets its memory from the system."""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8


def keep_freed_memory() -> None:
    """Lets glibc reuse large blocks instead of giving them back and faulting them in again at every layer.

    A step allocates tensors of many megabytes and frees them at once; by default each goes to the system and back,
    which shows in every large step. One arena, since only the main one can hold such blocks. Other C libraries
    are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(M_MMAP_THRESHOLD, 1 << 30)
    mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)
    mallopt(M_ARENA_MAX, 1)

"""Settings of the C library's memory allocator."""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8


def keep_freed_memory() -> None:
    """Lets glibc reuse large blocks instead of giving them back and faulting them in again at every layer.

    A step allocates tensors of many megabytes and frees them at once; by default each goes to the system and back,
    which slows down every large step. There is one arena, since only the main arena can hold such blocks. C libraries
    without `mallopt` are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(M_MMAP_THRESHOLD, 1 << 30)
    mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)
    mallopt(M_ARENA_MAX, 1)

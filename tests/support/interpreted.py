"""Triton's interpreter, which runs a kernel on the CPU, one program after the other, for the tests of that kernel."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder, TensorHandle
from triton.runtime.jit import JITFunction


@contextmanager
def interpreted(*names: str) -> Iterator[list[ModuleType]]:
    """These modules, imported anew with their kernels interpreted; afterwards everything is as it was.

    Triton decides when a function is decorated. Other tests may have imported Triton as it is, transformers does; so
    the functions of its own language (max, sum) are exchanged too, rather than left to the order of imports.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name, member in list(vars(tl).items()):
            if isinstance(member, JITFunction):
                patch.setattr(tl, name, InterpretedFunction(member.fn))
        prepare = interpreter._patch_lang
        patch.setattr(interpreter, "_patch_lang", lambda _: prepare(WholeLanguage))
        patch.setattr(InterpretedFunction, "__call__", _call)
        patch.setattr(InterpreterBuilder, "create_dot", _dot)
        patch.setattr(InterpreterBuilder, "create_fp_trunc", _truncated)
        for name in names:
            patch.delitem(sys.modules, name, raising=False)
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("TRITON_INTERPRET", "1")
            modules = [import_module(name) for name in names]
        try:
            yield modules
        finally:
            for name in names:
                package, _, leaf = name.rpartition(".")
                delattr(sys.modules[package], leaf)
                del sys.modules[name]


class Launches:
    """Those of a kernel, each with the number format of its first argument and what it is compiled with."""

    def __init__(self, kernel: Any) -> None:
        self._kernel, self.seen = kernel, list[tuple[object, ...]]()

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(rows: Any, *arguments: object, **constants: object) -> None:
            self.seen.append((rows.dtype, *constants.values()))
            self._kernel[grid](rows, *arguments, **constants)

        return launch


class WholeLanguage:
    """Stands for a kernel that sees all of the language, as one that calls into it does."""

    __globals__ = {"tl": tl, "core": tl.core}  # noqa: RUF012


def _call(function: InterpretedFunction, *arguments: object, **options: object) -> object:
    """Of a function inside a kernel: without preparing the language once more, which takes milliseconds each time."""
    return function.rewrite()(*arguments, **options)


def _dot(_: InterpreterBuilder, a: TensorHandle, b: TensorHandle, d: TensorHandle, *__: object) -> TensorHandle:
    """A product in float32. The interpreter's own multiplies the bits of bfloat16 as if they were integers."""
    return TensorHandle(_widened(a) @ _widened(b) + d.data, d.dtype.scalar)


def _truncated(builder: InterpreterBuilder, source: TensorHandle, kind: tl.dtype) -> TensorHandle:
    """To the nearest bfloat16, ties to even, as devices do. The interpreter's own cuts the last bits off."""
    if kind.scalar is not tl.bfloat16:
        return builder.cast_impl(source, kind)
    bits = source.data.astype(np.float32).view(np.uint32)
    nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return TensorHandle(np.where(np.isnan(source.data), 0x7FC0, nearest).astype(np.uint16), tl.bfloat16)


def _widened(handle: TensorHandle) -> np.ndarray:
    if handle.dtype.scalar is tl.bfloat16:
        return (handle.data.astype(np.uint32) << 16).view(np.float32)
    return handle.data.astype(np.float32)

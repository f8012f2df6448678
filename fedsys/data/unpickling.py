"""Read pickles of plain data without running anything: numbers, strings, containers, arrays.

A pickle is a program. The one here may only build containers of numbers and strings, and call the
stand-ins below where NumPy's arrays are put together: no class or function of any module is looked
up, and NumPy itself is only given bytes whose length was compared with their shape.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

_NUMBERS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")

_OPCODES = (
    pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.NONE,
    pickle.NEWTRUE, pickle.NEWFALSE, pickle.BININT, pickle.BININT1, pickle.BININT2,
    pickle.LONG1, pickle.BINFLOAT, pickle.BINSTRING, pickle.SHORT_BINSTRING,
    pickle.BINUNICODE, pickle.SHORT_BINUNICODE, pickle.BINUNICODE8,
    pickle.BINBYTES, pickle.SHORT_BINBYTES, pickle.BINBYTES8, pickle.BYTEARRAY8,
    pickle.EMPTY_DICT, pickle.EMPTY_LIST, pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1,
    pickle.TUPLE2, pickle.TUPLE3, pickle.APPEND, pickle.APPENDS, pickle.SETITEM, pickle.SETITEMS,
    pickle.BINPUT, pickle.LONG_BINPUT, pickle.BINGET, pickle.LONG_BINGET, pickle.MEMOIZE,
    pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.REDUCE, pickle.BUILD,
)  # fmt: skip


def load_plain(content: bytes) -> Any:
    """The object in a pickle of plain data, with `PickledArray` for NumPy's arrays.

    Raises:
        ValueError: if the pickle is damaged, or holds anything else.
    """
    try:
        return _PlainUnpickler(content).load()
    except KeyError as error:
        raise ValueError(f"not a pickle of plain data (opcode or reference {error})") from error
    except Exception as error:  # a damaged pickle can raise anything that its opcodes can
        raise ValueError(
            f"not a pickle of plain data ({str(error) or type(error).__name__})"
        ) from error


class _StandIn:
    """The stand-in for a name in a pickle; BUILD cannot change it."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        raise ValueError("state for an object that has none")


class _ArrayClass(_StandIn):
    """numpy.ndarray, as an argument."""

    __slots__ = ()


class PickledArray:
    """An array: its shape and type, and the bytes that belong to them."""

    __slots__ = ("_content",)

    def __init__(self) -> None:
        self._content: np.ndarray | None = None

    def __setstate__(self, state: tuple[int, tuple[int, ...], _Type, bool, bytes | str]) -> None:
        _, shape, kind, is_fortran, content = state
        self.fill(content, kind, shape, "F" if is_fortran else "C")

    def fill(self, content: object, kind: object, shape: Any, order: Any) -> None:
        """Take the content, if it is as long as shape and type say."""
        if isinstance(content, str):
            content = content.encode("latin1")  # of Python 2
        if not isinstance(content, bytes | bytearray) or not isinstance(kind, _Type):
            raise ValueError("an array without bytes or without a type")
        valid = isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape)
        if not valid or len(shape) > 8 or order not in ("C", "F"):
            raise ValueError(f"an array of shape {shape!r}")
        dtype = kind.dtype()
        wanted = math.prod(shape) * dtype.itemsize
        if wanted != len(content):
            raise ValueError(f"an array of {wanted} bytes that has {len(content)}")
        self._content = np.frombuffer(bytearray(content), dtype).reshape(shape, order=order)

    @property
    def array(self) -> np.ndarray:
        """The array itself."""
        if self._content is None:
            raise ValueError("an array without content")
        return self._content


class _Type(_StandIn):
    """numpy.dtype of one number."""

    __slots__ = ("_name", "_order")

    def __init__(self, name: object, *_: object) -> None:
        if name not in _NUMBERS:
            raise ValueError(f"an array of type {name!r}")
        self._name, self._order = str(name), "="

    def __setstate__(self, state: object) -> None:
        if not (isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">", "|", "=")):
            raise ValueError("a type of array that is not a number")
        self._order = state[1]

    def dtype(self) -> np.dtype[Any]:
        """NumPy's."""
        return np.dtype(self._order.replace("|", "=") + self._name)


class _Reconstruct(_StandIn):
    """numpy.core.multiarray._reconstruct: an array whose state comes later."""

    __slots__ = ()

    def __call__(self, kind: object, shape: object, code: object) -> PickledArray:
        if not isinstance(kind, _ArrayClass):
            raise ValueError("an array of an unknown class")
        return PickledArray()


class _FromBuffer(_StandIn):
    """numpy.core.numeric._frombuffer, which protocol 5 uses."""

    __slots__ = ()

    def __call__(self, content: object, kind: object, shape: object, order: object) -> PickledArray:
        array = PickledArray()
        array.fill(content, kind, shape, order)
        return array


class _MakeType(_StandIn):
    """numpy.dtype, called."""

    __slots__ = ()

    def __call__(self, *arguments: object) -> _Type:
        return _Type(*arguments)


class _Encode(_StandIn):
    """_codecs.encode, by which Python 3 writes bytes in protocol 2."""

    __slots__ = ()

    def __call__(self, text: object, encoding: object) -> bytes:
        if not isinstance(text, str) or encoding != "latin1":
            raise ValueError(f"bytes encoded as {encoding!r}")
        return text.encode("latin1")


_KNOWN: dict[tuple[str, str], type[_StandIn]] = {
    ("numpy", "ndarray"): _ArrayClass,
    ("numpy", "dtype"): _MakeType,
    ("numpy.core.multiarray", "_reconstruct"): _Reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _Reconstruct,
    ("numpy.core.numeric", "_frombuffer"): _FromBuffer,
    ("numpy._core.numeric", "_frombuffer"): _FromBuffer,
    ("_codecs", "encode"): _Encode,
}


class _PlainUnpickler(pickle._Unpickler):
    """Python's own unpickler with fewer opcodes.

    The one in C makes room for whatever a damaged pickle announces; this one has a dictionary for
    its memo and reads from memory, so that it needs no more than the file is long.
    """

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        opcode[0]: pickle._Unpickler.dispatch[opcode[0]] for opcode in _OPCODES
    }

    stack: list[Any]

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), fix_imports=False, encoding="latin1")

    def find_class(self, module: str, name: str) -> Any:
        """A stand-in for what belongs to arrays; nothing else exists."""
        if (module, name) not in _KNOWN:
            raise ValueError(f"it asks for {module}.{name}, which is not plain data")
        return _KNOWN[module, name]()

    def load_setitem(self) -> None:
        """A pair, whose key is plain: the hash of nested tuples can exhaust the stack."""
        self._require_plain(self.stack[-2:-1])
        super().load_setitem()  # type: ignore[misc]

    def load_setitems(self) -> None:
        """Some pairs."""
        self._require_plain(self.stack[::2])
        super().load_setitems()  # type: ignore[misc]

    @staticmethod
    def _require_plain(keys: list[Any]) -> None:
        if not all(isinstance(key, str | bytes | int) for key in keys):
            raise ValueError("a dictionary with keys that are not strings or numbers")

    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems

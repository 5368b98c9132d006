"""librollcast_trainer.so through ctypes: the types of trainer_bridge/trainer_c_api.h."""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import shutil
import threading
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np

NAME = "librollcast_trainer.so"
VERSION = "0.1.0"  # of the library that this package speaks to


class RollcastError(RuntimeError):
    """What rollcast says is wrong, in its own words."""


class Column(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("count", ctypes.c_int64), ("dtype", ctypes.c_int32)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("rank", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
    ]


class Draw(ctypes.Structure):
    _fields_ = [
        ("group_size", ctypes.c_int32),
        ("sampling", ctypes.c_char_p),
        ("seed", ctypes.POINTER(ctypes.c_uint64)),
        ("in_flight", ctypes.c_char_p),
        ("want_hidden", ctypes.c_int32),
    ]


class Update(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_int64),
        ("mode", ctypes.c_char_p),
        ("in_flight", ctypes.c_char_p),
        ("partial", ctypes.c_int32),
        ("num_names", ctypes.c_int32),
        ("names", ctypes.POINTER(ctypes.c_char_p)),
        ("deadline_s", ctypes.c_double),
        ("drain_limit_s", ctypes.c_double),
    ]


# The numbers of trainer_c_api.h.
F32, F16, BF16, I32, I64, U64, U8, F64 = range(8)
_NUMPY = {F32: np.float32, I32: np.int32, I64: np.int64, U64: np.uint64, U8: np.uint8, F64: np.float64}

_P = ctypes.c_void_p
_OUT = ctypes.POINTER(ctypes.c_void_p)
_SIGNATURES: Dict[str, Tuple[Any, List[Any]]] = {
    "rollcast_trainer_version": (ctypes.c_char_p, []),
    "rollcast_trainer_error": (ctypes.c_char_p, []),
    "rollcast_trainer_open": (
        ctypes.c_int, [ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p), ctypes.c_int32,
                       ctypes.c_char_p, _OUT]),
    "rollcast_trainer_describe": (ctypes.c_int, [_P, _OUT]),
    "rollcast_trainer_submit": (
        ctypes.c_int, [_P, ctypes.c_char_p, ctypes.POINTER(Draw), _OUT]),
    "rollcast_trainer_collect": (ctypes.c_int, [_P, ctypes.c_int32, ctypes.c_double, _OUT]),
    "rollcast_trainer_cancel": (ctypes.c_int, [_P, ctypes.c_double, _OUT]),
    "rollcast_trainer_interrupt": (ctypes.c_int, [_P]),
    "rollcast_trainer_rollout": (
        ctypes.c_int, [_P, ctypes.c_char_p, ctypes.POINTER(Draw), ctypes.c_double, _OUT]),
    "rollcast_trainer_publish": (
        ctypes.c_int,
        [_P, ctypes.POINTER(Tensor), ctypes.c_int64, ctypes.POINTER(Update), _OUT]),
    "rollcast_trainer_pack": (ctypes.c_int, [_P, ctypes.POINTER(Tensor), ctypes.POINTER(Tensor)]),
    "rollcast_trainer_score": (
        ctypes.c_int,
        [_P, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_double, _OUT]),
    "rollcast_trainer_manifest": (ctypes.c_int, [_P, ctypes.c_double, _OUT]),
    "rollcast_trainer_stats": (ctypes.c_int, [_P, ctypes.c_double, _OUT]),
    "rollcast_trainer_live_version": (ctypes.c_int64, [_P]),
    "rollcast_trainer_finish": (ctypes.c_int, [_P, ctypes.c_double]),
    "rollcast_trainer_fail": (ctypes.c_int, [_P, ctypes.c_char_p]),
    "rollcast_trainer_close": (None, [_P]),
    "rollcast_result_column": (ctypes.c_int, [_P, ctypes.c_char_p, ctypes.POINTER(Column)]),
    "rollcast_result_free": (None, [_P]),
}


def _candidates() -> List[pathlib.Path]:
    package = pathlib.Path(__file__).resolve().parent
    found = [package / NAME]
    # In a checkout: trainer_bridge/python/rollcast, the builds are in build/.
    root = package.parents[2]
    found.append(root / "build" / "release" / NAME)
    found.extend(sorted(root.glob(f"build/*/{NAME}")))
    program = shutil.which("rollcast")
    if program is not None:
        found.append(pathlib.Path(program).resolve().parent / NAME)
    return found


def find_library() -> pathlib.Path:
    """The file that ROLLCAST_LIBRARY names; else the one in the package, in the checkout's build, or
    beside the `rollcast` of PATH. Raises RollcastError when there is none."""
    named = os.environ.get("ROLLCAST_LIBRARY")
    if named:
        if not os.path.isfile(named):
            raise RollcastError(f"ROLLCAST_LIBRARY names {named}, which is no file")
        return pathlib.Path(named)
    candidates = list(dict.fromkeys(_candidates()))
    for path in candidates:
        if path.is_file():
            return path
    tried = ", ".join(str(path) for path in candidates)
    raise RollcastError(
        f"{NAME} was not found ({tried}): build it (cmake --build build/release --target "
        "rollcast_trainer) and name it in ROLLCAST_LIBRARY")


class Library:
    """The functions, loaded and typed. `call` raises RollcastError for a status that is not 0."""

    _lock = threading.Lock()
    _loaded: Optional["Library"] = None

    def __init__(self, path: pathlib.Path) -> None:
        try:
            self._c = ctypes.CDLL(str(path))
        except OSError as error:
            raise RollcastError(f"{path} cannot be loaded: {error}") from None
        for name, (result, arguments) in _SIGNATURES.items():
            try:
                function = getattr(self._c, name)
            except AttributeError:
                raise RollcastError(f"{path} has no {name}: it is of another version") from None
            function.restype, function.argtypes = result, arguments
        version = self._c.rollcast_trainer_version().decode()
        if version != VERSION:
            raise RollcastError(
                f"{path} is of rollcast {version}, this Python package of {VERSION}")

    @classmethod
    def load(cls) -> "Library":
        with cls._lock:
            if cls._loaded is None:
                cls._loaded = cls(find_library())
            return cls._loaded

    def call(self, name: str, *arguments: Any) -> None:
        if getattr(self._c, name)(*arguments) != 0:
            # The words are of this thread's last call.
            text = self._c.rollcast_trainer_error().decode("utf-8", "replace")
            raise RollcastError(text)

    def plain(self, name: str, *arguments: Any) -> Any:
        return getattr(self._c, name)(*arguments)


class Result:
    """Owner of a rollcast_result; columns are copied out of it."""

    def __init__(self, library: Library, call: Callable[[Any], None]) -> None:
        """`call` is given where the address of the result goes."""
        self._library = library
        self._handle = ctypes.c_void_p()
        call(ctypes.byref(self._handle))

    @classmethod
    def owner_of(cls, library: Library, handle: ctypes.c_void_p) -> "Result":
        def give(out: Any) -> None:
            out._obj.value = handle.value

        return cls(library, give)

    def __enter__(self) -> "Result":
        return self

    def __exit__(self, *_: object) -> None:
        self._library.plain("rollcast_result_free", self._handle)

    def column(self, name: str) -> np.ndarray:
        column = Column()
        self._library.call(
            "rollcast_result_column", self._handle, name.encode(), ctypes.byref(column))
        dtype = np.dtype(_NUMPY[column.dtype])
        if column.count == 0:
            return np.empty(0, dtype)
        size = column.count * dtype.itemsize
        view = (ctypes.c_uint8 * size).from_address(column.data)
        return np.frombuffer(view, dtype).copy()

    def json(self) -> Any:
        return json.loads(self.column("json").tobytes().decode("utf-8"))

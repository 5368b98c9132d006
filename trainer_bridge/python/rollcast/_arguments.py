"""What a script gives for a number that goes to C, where ctypes would wrap or truncate it, or into
JSON, which has no NaN."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Mapping
from typing import Any, Iterator, Tuple

import numpy as np

from . import tensors as tensor_rules
from ._library import RollcastError

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
UINT64_MAX = 2**64 - 1
SECONDS_MAX = 1e9  # as TrainerClient
GROUP_SIZE_MAX = 4096  # kMaxGroupSize of rollout/group_work.h


def integer(what: str, value: Any, low: int, high: int) -> int:
    """An integer of any kind (int, numpy, torch) in [low, high]. Raises RollcastError naming `what`."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise RollcastError(f"{what} is {value!r}: must be an integer") from None
    if not low <= number <= high:
        raise RollcastError(f"{what} is {number}: must be at least {low} and at most {high}")
    return number


def seconds(what: str, value: Any, zero: bool = False) -> float:
    """A duration, finite and above 0 (`zero`: or 0). Raises RollcastError naming `what`."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    # Written so that a NaN is wrong.
    if not ((number >= 0 if zero else number > 0) and number <= SECONDS_MAX):
        least = "at least" if zero else "above"
        raise RollcastError(
            f"{what} is {value!r}: must be a number of seconds, {least} 0 and at most "
            f"{SECONDS_MAX:.0f}")
    return number


def _plain(value: Any) -> Any:
    """What json does not know: arrays and their elements."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a prompt or a sampling parameter cannot be a {type(value).__name__}")


def _not_finite(value: Any, name: str) -> Iterator[Tuple[str, float]]:
    """The numbers in `value` that JSON has not, each with its name."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        for key, element in value.items():
            yield from _not_finite(element, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for i, element in enumerate(value):
            yield from _not_finite(element, f"{name}[{i}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield name, value


def to_json(place: str, value: Mapping) -> str:
    """Raises RollcastError, which begins with `place`, naming a number that is not finite."""
    try:
        return json.dumps(dict(value), default=_plain, allow_nan=False)
    except ValueError:
        for name, number in _not_finite(value, ""):
            raise RollcastError(f"{place}{name} is {number}: must be a finite number") from None
        raise


def token_ids(tokens: Any) -> np.ndarray:
    """[N] int32, contiguous. Raises RollcastError naming the element that is no int32 >= 0."""
    array = np.asarray(tensor_rules.to_host(tokens) if tensor_rules.is_torch(tokens) else tokens)
    if array.ndim != 1:
        raise RollcastError(f"tokens has shape {list(array.shape)}: expected [N]")
    if array.dtype.kind not in "iu" or (
            array.size and not (array.min() >= 0 and array.max() <= INT32_MAX)):
        # One by one, as they were given: an array has made 1 of [1, 2.7] a float, too.
        array = np.array(
            [integer(f"tokens[{i}]", token, 0, INT32_MAX) for i, token in enumerate(tokens)])
    return np.ascontiguousarray(array, np.int32)

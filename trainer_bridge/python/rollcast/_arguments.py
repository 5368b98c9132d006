"""What a script gives for a number that goes to C, where ctypes would wrap or truncate it."""

from __future__ import annotations

import math
import operator
from typing import Any

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

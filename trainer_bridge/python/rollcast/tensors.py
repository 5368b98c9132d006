"""From a trainer's names and tensors to what an update carries.

Names. A name that the ranks know (`Client.manifest`) is taken as it is. Of any other
  1. the wrappers `_orig_mod` (torch.compile), `_fsdp_wrapped_module`, `_checkpoint_wrapped_module` are
     taken out wherever they stand, and `module.` (DDP, DeepSpeed) and `base_model.model.` (PEFT) where
     the name begins with them, again and again;
  2. it is passed over when it then ends in `.rotary_emb.inv_freq` or `.rotary_emb.original_inv_freq`:
     buffers that follow from the configuration;
  3. anything else that the ranks do not know is an error. So are the adapters and `base_layer` weights
     of a LoRA model that has not been merged: what they would publish is not the trained policy.

Tensors. numpy arrays or torch tensors of float32, float16 or bfloat16, cast on the way to what the
ranks hold. numpy has no bfloat16: an array of uint16 is taken as the bits of bfloat16 (ml_dtypes'
bfloat16 works, too).
"""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any, AbstractSet, Optional, Tuple

import numpy as np

from . import _library
from ._library import RollcastError

_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_PREFIXES = ("module.", "base_model.model.")
_BUFFERS = (".rotary_emb.inv_freq", ".rotary_emb.original_inv_freq")


def wire_name(name: str, known: AbstractSet[str]) -> Optional[str]:
    """The name that the ranks are told; None for a buffer that is passed over. A name that nobody
    knows comes back as it is after rule 1, and the update then fails with it."""
    if name in known:
        return name
    name = ".".join(part for part in name.split(".") if part not in _WRAPPERS)
    while name not in known:
        prefix = next((p for p in _PREFIXES if name.startswith(p)), None)
        if prefix is None:
            break
        name = name[len(prefix):]
    if name not in known and ("." + name).endswith(_BUFFERS):
        return None
    return name


@dataclasses.dataclass
class View:
    """The memory of one tensor, and what keeps it."""

    address: int
    shape: Tuple[int, ...]
    dtype: int
    owner: Any
    device: Optional[Any] = None  # a torch.device that is not the CPU

    def to_c(self, name: str) -> "_library.Tensor":
        """Holds name and shape, but not the memory."""
        shape = (ctypes.c_int64 * len(self.shape))(*self.shape)
        return _library.Tensor(name.encode(), self.address, shape, len(self.shape), self.dtype)


def is_torch(tensor: Any) -> bool:
    return type(tensor).__module__.partition(".")[0] == "torch" or hasattr(tensor, "data_ptr")


def is_contiguous(tensor: Any) -> bool:
    return tensor.is_contiguous() if is_torch(tensor) else bool(tensor.flags.c_contiguous)


def on_device(tensor: Any) -> bool:
    return is_torch(tensor) and tensor.device.type != "cpu"


def to_host(tensor: Any) -> Any:
    """Contiguous, in host memory; the tensor itself where it is that already."""
    if is_torch(tensor):
        return tensor.detach().cpu().contiguous()
    return np.ascontiguousarray(tensor)


def _wrong_dtype(name: str, dtype: object) -> RollcastError:
    return RollcastError(
        f"tensor {name}: dtype {str(dtype).replace('torch.', '')} cannot be published; expected "
        "float32, float16 or bfloat16")


def view(name: str, tensor: Any) -> View:
    """Of a contiguous tensor. Raises RollcastError naming `name`."""
    if is_torch(tensor):
        import torch

        codes = {
            torch.float32: _library.F32,
            torch.float16: _library.F16,
            torch.bfloat16: _library.BF16,
        }
        if tensor.dtype not in codes:
            raise _wrong_dtype(name, tensor.dtype)
        device = tensor.device if tensor.device.type != "cpu" else None
        tensor = tensor.detach()
        return View(tensor.data_ptr(), tuple(tensor.shape), codes[tensor.dtype], tensor, device)
    if tensor.dtype == np.float32:
        code = _library.F32
    elif tensor.dtype == np.float16:
        code = _library.F16
    elif tensor.dtype == np.uint16 or tensor.dtype.name == "bfloat16":
        code = _library.BF16
    else:
        raise _wrong_dtype(name, tensor.dtype)
    return View(tensor.ctypes.data, tuple(tensor.shape), code, tensor)


def check(name: str, tensor: Any) -> None:
    """Raises RollcastError for what is no whole tensor in the memory of a CPU or a CUDA device."""
    if not is_torch(tensor):
        # What a masked array hides would be sent.
        if not isinstance(tensor, np.ndarray) or isinstance(tensor, np.ma.MaskedArray):
            raise RollcastError(
                f"tensor {name}: a {type(tensor).__name__}; expected a torch tensor or a numpy array")
        return
    if str(getattr(tensor, "layout", "torch.strided")) != "torch.strided":
        raise RollcastError(f"tensor {name}: {tensor.layout}; expected a dense tensor")
    if hasattr(tensor, "full_tensor"):
        raise RollcastError(
            f"tensor {name}: a DTensor, of which this process has a shard; yield "
            "tensor.full_tensor() from a generator that all ranks of the trainer run")
    if tensor.device.type not in ("cpu", "cuda"):
        raise RollcastError(
            f"tensor {name}: on device {tensor.device}; expected the CPU or a CUDA device")

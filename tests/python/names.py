"""The rules of rollcast/tensors.py and _arguments.py, and how the library is found; no job."""
import os
import sys

import numpy as np
import rollcast
from rollcast import _arguments, _library, tensors

KNOWN = frozenset({"model.embed_tokens.weight", "model.layers.0.q.weight", "module.odd"})


def test_names():
    for given, expected in {
            "model.layers.0.q.weight": "model.layers.0.q.weight",
            "module.model.layers.0.q.weight": "model.layers.0.q.weight",
            "module._orig_mod.module.model.layers.0.q.weight": "model.layers.0.q.weight",
            "_orig_mod.model.layers.0._checkpoint_wrapped_module.q.weight": "model.layers.0.q.weight",
            "_fsdp_wrapped_module.model.layers.0._fsdp_wrapped_module.q.weight":
                "model.layers.0.q.weight",
            "base_model.model.model.embed_tokens.weight": "model.embed_tokens.weight",
            "module.odd": "module.odd",
            "model.rotary_emb.inv_freq": None,
            "module.model.layers.3.self_attn.rotary_emb.inv_freq": None,
            "model.rotary_emb.original_inv_freq": None,
            "model.inv_freq": "model.inv_freq",
            "base_model.model.model.layers.0.q.lora_A.weight": "model.layers.0.q.lora_A.weight",
            "base_model.model.model.layers.0.q.base_layer.weight": "model.layers.0.q.base_layer.weight",
    }.items():
        assert tensors.wire_name(given, KNOWN) == expected, given


def test_views():
    for dtype, code in ((np.float32, 0), (np.float16, 1), (np.uint16, 2)):
        array = np.zeros((2, 3), dtype)
        view = tensors.view("a", array)
        assert (view.address, view.shape, view.dtype) == (array.ctypes.data, (2, 3), code)
    swapped = np.zeros(2, np.dtype(np.float32).newbyteorder())
    for wrong in (swapped, np.zeros(2, np.int32)):
        try:
            tensors.view("model.norm.weight", wrong)
        except rollcast.RollcastError as error:
            assert "tensor model.norm.weight: dtype" in str(error)
        else:
            raise AssertionError(wrong.dtype)


class FakeTorchIds:
    """As far as a torch tensor of integers goes here."""

    def __init__(self, ids):
        self.ids = np.array(ids)

    def data_ptr(self):
        raise AssertionError("not of a tensor on a device")

    def detach(self):
        return self

    cpu = contiguous = detach

    def __array__(self, dtype=None, copy=None):
        return self.ids


def test_arguments():
    assert _arguments.integer("n", np.uint8(3), 0, 3) == 3
    for wrong in (4, -1, 2.0, True, "3", None, np.float32(1), 2**64):
        try:
            _arguments.integer("n", wrong, 0, 3)
        except rollcast.RollcastError as error:
            assert str(error).startswith(f"n is {wrong!r}: must be"), error
        else:
            raise AssertionError(wrong)
    ids = _arguments.token_ids(FakeTorchIds([5, 2**31 - 1]))
    assert ids.dtype == np.int32 and ids.tolist() == [5, 2**31 - 1]
    assert _arguments.token_ids([]).shape == (0,)
    assert _arguments.seconds("t", np.float32(0.5)) == 0.5
    assert _arguments.seconds("t", 0, zero=True) == 0


def test_errors():
    library = os.environ["ROLLCAST_LIBRARY"]
    for name in [name for name in os.environ if name.startswith(("OMPI_", "PMI"))]:
        del os.environ[name]
    try:
        rollcast.Client("")
    except rollcast.RollcastError as error:
        assert "was not started by mpirun" in str(error), error
    else:
        raise AssertionError("a Client without mpirun")
    os.environ["ROLLCAST_LIBRARY"] = library + ".not"
    try:
        _library.find_library()
    except rollcast.RollcastError as error:
        assert f"ROLLCAST_LIBRARY names {library}.not, which is no file" in str(error)
    else:
        raise AssertionError("a library that is not there")


def main():
    tests = [value for name, value in globals().items() if name.startswith("test_")]
    for test in tests:
        test()
    print(len(tests), "passed")


sys.exit(main())

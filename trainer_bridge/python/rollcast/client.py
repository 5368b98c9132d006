"""The trainer of a job."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import dataclasses
import json
import os
import sys
import threading
from collections.abc import ItemsView
from collections.abc import Iterable as IterableABC
from collections.abc import Mapping as MappingABC
from types import TracebackType
from typing import (Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple,
                    Type, Union)

import numpy as np

from . import tensors as tensor_rules
from ._arguments import (GROUP_SIZE_MAX, INT32_MAX, INT64_MAX, UINT64_MAX, integer, seconds, to_json,
                         token_ids)
from ._library import Draw, Library, Result, RollcastError, Tensor, Update
from .trajectory import Array, Batch, check_arrays, read_batch, to_torch

#: A text; token ids; or a row as in a prompt file: {"text" | "tokens" | "messages", "id", "answer",
#: "sampling", "metadata"}.
Prompt = Union[str, Sequence[int], np.ndarray, Mapping[str, Any]]
Tensors = Union[Mapping[str, Any], Iterable[Tuple[str, Any]]]


@dataclasses.dataclass
class SyncReport:
    """How an update went. Seconds are the slowest rank's; bytes are what one rank has received."""

    version: int  #: the live policy version after it
    committed: bool
    error: str  #: of a committed update: which rank has not confirmed it and is left behind
    mode: str
    transport: str
    digest: str  #: of all the ranks' weights, hexadecimal; equal weights, equal digest
    bytes: int
    total_s: float
    announce_s: float
    transfer_s: float
    verify_s: float
    commit_s: float
    pause_s: float  #: longest time that any rank took no step
    sequences_kept: int
    sequences_recomputed: int
    sequences_aborted: int


class UpdateError(RollcastError):
    """An update that has not been committed: the ranks go on with the policy they had, or, where
    `in_place` had begun to write, wait with torn weights for a whole update. It may be published
    again."""

    def __init__(self, report: SyncReport) -> None:
        super().__init__(report.error)
        self.report = report


@dataclasses.dataclass
class TensorInfo:
    name: str
    dtype: str  #: "float32", "float16" or "bfloat16"
    shape: Tuple[int, ...]


@dataclasses.dataclass
class Manifest:
    """The tensors that the ranks hold, under Hugging Face names."""

    version: int  #: live when it was asked for
    digest: str
    tensors: List[TensorInfo]
    aliases: Dict[str, str]  #: second names, such as lm_head.weight of a tied model


@dataclasses.dataclass
class Score:
    logprob_raw: Array  #: [N - 1] float32, of tokens[1:] under softmax(logits)
    logits: Optional[Array]  #: [N, vocabulary] float32; None unless asked for
    version: int  #: of the policy


@dataclasses.dataclass
class JobStats:
    """How the job is doing, as the first rollout rank sees it."""

    version: int
    queued: int  #: completions that no rank has yet
    assigned: int  #: completions that a rank has
    ready: int  #: groups that could be collected
    returned: int  #: completions handed over since the start
    regenerated: int  #: tries that were over the lag limit
    lost: int  #: completions that a lost rank had
    workers: List[Dict[str, Any]]  #: of each rank, as of its last heartbeat
    lost_ranks: List[int]  #: that the job has gone on without


def _toml(value: Any) -> str:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (str, os.PathLike)):
        return json.dumps(os.fspath(value), ensure_ascii=False)
    if isinstance(value, (list, tuple, np.ndarray)):
        return "[" + ", ".join(_toml(element) for element in value) + "]"
    raise TypeError(f"a setting cannot be a {type(value).__name__}")


def _rows(prompts: Iterable[Prompt]) -> bytes:
    if isinstance(prompts, (str, bytes, MappingABC)):
        raise TypeError("prompts is a single prompt; give a list of prompts")
    if not isinstance(prompts, IterableABC):
        raise TypeError(f"prompts is a {type(prompts).__name__}; give a list of prompts")
    rows = []
    for number, prompt in enumerate(prompts, 1):
        if isinstance(prompt, str):
            prompt = {"text": prompt}
        elif not isinstance(prompt, MappingABC):
            prompt = {"tokens": prompt}
        rows.append(to_json(f"prompts:{number}: ", prompt))
    return "\n".join(rows).encode()


def _default_device() -> str:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{torch.cuda.current_device()}"


def _text(what: str, value: Optional[str]) -> Optional[bytes]:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{what} is a {type(value).__name__}; expected a text")
    return None if value is None else value.encode()


def _pairs(tensors: Tensors) -> Iterable[Tuple[str, Any]]:
    if isinstance(tensors, MappingABC):
        return tensors.items()
    if not isinstance(tensors, IterableABC) or isinstance(tensors, (str, bytes)):
        raise TypeError(f"tensors is a {type(tensors).__name__}; give names and tensors, as "
                        "model.state_dict() does")
    return tensors


def _pair(pair: Any) -> Tuple[str, Any]:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[0], str):
        raise TypeError(f"tensors has a {type(pair).__name__}; expected pairs of name and tensor")
    return pair[0], pair[1]


class Client:
    """Joins the job that mpirun has started, as its trainer.

        mpirun -np 1 python train.py : -np N rollcast worker -c job.toml

    `config` is the file that the ranks were given, and `settings` ({"rollout.seed": 3}, or the words
    themselves, ["rollout.seed=3"]) stand for their `--set`: what a job shares must be the same on all ranks, and an error names what is not.
    `arrays`: "numpy" or "torch", of what trajectories and scores hold. `device` ("cpu", "cuda:0"): where
    most of the published tensors lie, which decides by which way weights go (sync.transport); None =
    the current CUDA device of a script that has imported a torch with CUDA, else the CPU.

    Use it as a context manager. When the block ends the job does, and its trajectory file is complete;
    an exception in the block ends the job as failed, and every rank exits with a non-zero status and
    the exception's text. The constructor waits for all ranks to join; they may still be loading their
    weights, and the first call that needs them waits for that. Between calls a thread of the library
    keeps the job alive: the script may compute for as long as it likes.

    Any thread may call; one call waits for another, for as long as its own `timeout` and three times
    sync.heartbeat_s allow. `cancel` interrupts the call that it would wait for. What rollcast says
    is wrong comes as RollcastError. The library starts MPI itself unless the script has (`import mpi4py` first is fine,
    but mpi4py then ends MPI when the script does, and the ranks wait only 10 s for that once the job
    is over). Of a trainer of many processes one opens the Client.
    """

    def __init__(
        self,
        config: Union[str, "os.PathLike[str]"],
        settings: Union[Mapping[str, Any], Sequence[str], None] = None,
        *,
        arrays: str = "numpy",
        device: Optional[str] = None,
    ) -> None:
        self._arrays = check_arrays(arrays)
        self._library = Library.load()
        self._handle: Optional[ctypes.c_void_p] = None
        self._over = False
        self._idle = threading.Condition()
        self._calls = 0  # into the library under way; guarded by _idle, as is the end of _handle
        self._publishing = threading.Lock()
        self._abandoned_publishes: List[threading.Event] = []  # that a second Ctrl-C has left
        self._left: List[Batch] = []  # what interrupted calls had got
        self._kept: List[Any] = []  # tensors that a late rank may still be reading
        self._known: Optional[frozenset] = None
        if isinstance(settings, str):
            raise TypeError("settings is a single setting; give a list, or a dict by key")
        if isinstance(settings, MappingABC):
            settings = [f"{key}={_toml(value)}" for key, value in settings.items()]
        sets = [setting.encode() for setting in settings or []]
        handle = ctypes.c_void_p()
        self._wait(lambda: self._library.call(
            "rollcast_trainer_open", os.fsencode(config), (ctypes.c_char_p * len(sets))(*sets),
            len(sets), (device or _default_device()).encode(), ctypes.byref(handle)))
        self._handle = handle
        self._process = os.getpid()
        atexit.register(self._at_exit)
        with self._result("rollcast_trainer_describe") as result:
            about = result.json()
        self.config: Dict[str, Dict[str, Any]] = about["config"]  #: all settings, by table and key
        self.rank: int = about["rank"]  #: of this process among all of mpirun's
        self.workers: List[int] = about["workers"]  #: the rollout ranks
        self.hosts: List[str] = about["hosts"]  #: of every rank
        self._takes_device_memory: bool = about["device_memory"]

    # Rollouts

    def rollout(
        self,
        prompts: Iterable[Prompt],
        group_size: Optional[int] = None,
        sampling: Optional[Mapping[str, Any]] = None,
        *,
        seed: Optional[int] = None,
        in_flight: Optional[str] = None,
        hidden: bool = False,
        timeout: float = 3600.0,
    ) -> Batch:
        """`group_size` completions of each prompt, in the order of the prompts.

        `group_size` defaults to rollout.group_size, and `sampling` ({"temperature": 1.0,
        "max_tokens": 256, ...}) is over [sampling] of the configuration. Without a `seed` it is a
        function of rollout.seed and of how many submissions came before. What a prompt's own
        "sampling" says goes before both. `in_flight` ("keep",
        "recompute", "drain", "abort") overrides what updates do to these completions; `hidden` keeps
        the last hidden states. Every completion has exactly one outcome: see `Batch.completed`.
        A group has at most 4096 completions. Iterate over the batch for `text`, `reward` and the
        rest of each Trajectory; `batch.padded().reward` has the rewards as one array.
        Nothing else may be pending. Raises RollcastError after `timeout` seconds: groups that were
        done by then are in the trajectory file alone, and the others go on; `collect` waits for them,
        and `cancel` ends them. So it is after a Ctrl-C.
        """
        draw = self._draw(group_size, sampling, seed, in_flight, hidden)
        limit = seconds("timeout", timeout)
        return self._batch("rollcast_trainer_rollout", _rows(prompts), ctypes.byref(draw), limit)

    def submit(
        self,
        prompts: Iterable[Prompt],
        group_size: Optional[int] = None,
        sampling: Optional[Mapping[str, Any]] = None,
        *,
        seed: Optional[int] = None,
        in_flight: Optional[str] = None,
        hidden: bool = False,
    ) -> List[int]:
        """Queues prompts, as `rollout` does, and returns at once: one group id a prompt."""
        draw = self._draw(group_size, sampling, seed, in_flight, hidden)
        with self._result("rollcast_trainer_submit", _rows(prompts), ctypes.byref(draw)) as result:
            return [int(group) for group in result.column("group_id")]

    def collect(self, groups: Optional[int] = None, timeout: float = 3600.0) -> Batch:
        """Waits for `groups` whole groups, in the order in which they are done; None: all that are
        pending. Fewer come back after `timeout` seconds (0: what is there), or when no more are
        pending. Each was checked against the policy version that is live now. After a Ctrl-C
        nothing is lost: what it had got comes with the next call."""
        count = INT32_MAX if groups is None else integer("groups", groups, 1, INT32_MAX)
        limit = seconds("timeout", timeout, zero=True)
        return self._with_left(self._batch("rollcast_trainer_collect", count, limit))

    def cancel(self, timeout: float = 60.0) -> Batch:
        """Ends what is pending and returns it: completions that had been finished as they are, the
        others with the outcome "aborted" and the tokens that there are. Whether it is used or not, it
        is no longer pending, and is in the trajectory file. A `rollout` or `collect` that waits in
        another thread ends with what it has, as at its timeout. What is not there after `timeout`
        seconds (a slow scorer has it) stays pending: `pending_groups` of the batch says how much."""
        limit = seconds("timeout", timeout)
        return self._with_left(self._batch("rollcast_trainer_cancel", limit))

    # Weights

    def publish(
        self,
        tensors: Tensors,
        version: Optional[int] = None,
        *,
        mode: Optional[str] = None,
        in_flight: Optional[str] = None,
        partial: bool = False,
        names: Optional[Sequence[str]] = None,
        deadline: Optional[float] = None,
        drain_limit: Optional[float] = None,
    ) -> SyncReport:
        """Makes `tensors` the policy of all ranks: on every one of them or on none.

        A mapping, such as `model.state_dict()`, or pairs of name and whole tensor; `tensors.py` says
        which names and tensors are taken. What lies contiguous in host memory is sent from where it
        is. Anything else is first copied, one tensor at a time, into host memory in the ranks' dtype,
        which the client keeps for the next update: tensors that are not contiguous, tensors on a GPU
        where the transport cannot read that, and every tensor that comes from anything but a mapping,
        a list or a tuple (a generator that gathers sharded parameters, `named_parameters()`), since it
        may be gone before the update begins. So an iterator costs at most the ranks' weights once in host memory, and one whole
        tensor beside them; `dict(model.named_parameters())` costs nothing.

        A whole update (every tensor of `manifest`) is expected; for less say `partial=True`.

        Values are looked at only where a cast could overflow: weights with NaN are published, and
        completions drawn from them come back as "failed".

        `version`: the new policy version; None = live + 1. `mode` ("staged", "in_place"), `in_flight`
        ("keep", "recompute", "drain", "abort"), `deadline` and `drain_limit` (seconds) default to
        [sync]. `partial`: not every tensor is given, and the others stay as they are; then `names`, if
        any, are exactly those that are given.

        A Ctrl-C is raised once the update has ended, since it is sent from `tensors`; see
        `live_version` for how. A second one is raised at once: do not touch the tensors then.

        Raises RollcastError, naming the tensor, when the tensors do not fit the model, before anything
        has been sent; UpdateError when the update was not committed.
        """
        number = -1 if version is None else integer("version", version, 0, INT64_MAX)
        limits = [0.0 if limit is None else seconds(what, limit)
                  for what, limit in (("deadline", deadline), ("drain_limit", drain_limit))]
        chosen = []
        if names is not None:
            if isinstance(names, str) or not all(isinstance(name, str) for name in names):
                raise TypeError("names is no list of texts")
            known = self._known_names()
            chosen = [(tensor_rules.wire_name(name, known) or name).encode() for name in names]
        update = Update(
            number, _text("mode", mode), _text("in_flight", in_flight), int(bool(partial)),
            len(chosen), (ctypes.c_char_p * len(chosen))(*chosen), *limits)
        with self._publishing:
            # What is copied goes where the copies of an earlier update may still be sent from.
            while self._abandoned_publishes:
                self._abandoned_publishes[-1].wait()
                self._abandoned_publishes.pop()
            given, owners = self._gather(tensors)
            self._kept.append((given, owners))  # also if Ctrl-C leaves the call
            with self._result("rollcast_trainer_publish", (Tensor * len(given))(*given), len(given),
                              ctypes.byref(update), interrupted=self._await_publish) as result:
                report = SyncReport(**result.json())
            if not report.error:
                self._kept.pop()
        if not report.committed:
            raise UpdateError(report)
        return report

    def score(
        self, tokens: Union[Sequence[int], Array], logits: bool = False, timeout: float = 600.0
    ) -> Score:
        """Teacher-forced log-probabilities of `tokens`, [N] ids, under the live policy, by one of the
        ranks: the bits that decoding records as `logprob_raw`."""
        ids = token_ids(tokens)
        limit = seconds("timeout", timeout)
        with self._result("rollcast_trainer_score", ids.ctypes.data_as(ctypes.c_void_p),
                          len(ids), int(bool(logits)), limit) as result:
            columns = [result.column("logprob_raw"), result.column("logits")]
            version = result.json()["version"]
        if self._arrays == "torch":
            columns = [to_torch(column) for column in columns]
        return Score(columns[0], columns[1].reshape(len(ids), -1) if logits else None, version)

    def manifest(self, timeout: float = 60.0) -> Manifest:
        """Names, dtypes and shapes of the ranks' tensors."""
        with self._result("rollcast_trainer_manifest", seconds("timeout", timeout)) as result:
            fields = result.json()
        fields["tensors"] = [
            TensorInfo(t["name"], t["dtype"], tuple(t["shape"])) for t in fields["tensors"]]
        return Manifest(**fields)

    # The job

    def stats(self, timeout: float = 60.0) -> JobStats:
        with self._result("rollcast_trainer_stats", seconds("timeout", timeout)) as result:
            return JobStats(**result.json())

    @property
    def live_version(self) -> int:
        """The policy version that the last update or reply has shown to be live; 0 = the checkpoint."""
        with self._in_call() as handle:
            return int(self._library.plain("rollcast_trainer_live_version", handle))

    def finish(self, timeout: Optional[float] = None) -> None:
        """Ends the job well: what is pending is dropped, the trajectory file is complete, the ranks
        exit with 0. Default: sync.deadline_s seconds. A second call does nothing."""
        if self._over:
            return
        self._check_process()
        limit = seconds(
            "timeout", self.config["sync"]["deadline_s"] if timeout is None else timeout)
        self._call("rollcast_trainer_finish", limit)
        self._close()

    def fail(self, why: str) -> None:
        """Ends the job as failed: every rank exits with a non-zero status and says `why`."""
        if self._over:
            return
        self._check_process()
        with self._in_call() as handle:
            self._library.call("rollcast_trainer_fail", handle, why.encode("utf-8", "replace"))
        self._close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        if os.getpid() != self._process:
            return  # a fork of the script has no part in the job
        if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
            try:
                self.finish()
            except BaseException as failure:
                self.fail(str(failure) or type(failure).__name__)
                raise
        elif isinstance(error, RollcastError):
            self.fail(str(error))
        elif isinstance(error, SystemExit):
            self.fail(f"its script has exited with status {error.code}")
        else:
            text = str(error)
            self.fail(f"{type(error).__name__}: {text}" if text else type(error).__name__)

    # Inside

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RollcastError(
                f"this is a fork of the trainer (process {self._process}), which has no part in the job")

    @contextlib.contextmanager
    def _in_call(self) -> Iterator[ctypes.c_void_p]:
        """The handle, which is not closed before the block has ended."""
        self._check_process()
        with self._idle:
            if self._handle is None:
                raise RollcastError("the job is over: the client has been closed")
            handle = self._handle
            self._calls += 1
        try:
            yield handle
        finally:
            with self._idle:
                self._calls -= 1
                self._idle.notify_all()

    def _wait(self, body: Callable[[], None],
              interrupted: Callable[[threading.Event], None] = lambda over: None) -> None:
        """Calls on a thread of its own, so that Ctrl-C is heard while the call waits; it then goes
        on, and `interrupted` is given the event of its end."""
        failure: List[BaseException] = []
        # Not Thread.join: after a Ctrl-C in it some versions of Python take the thread for ended.
        over = threading.Event()

        def run() -> None:
            try:
                body()
            except BaseException as error:
                failure.append(error)
            finally:
                over.set()

        threading.Thread(target=run, daemon=True).start()
        try:
            over.wait()
        except BaseException:
            interrupted(over)
            raise
        if failure:
            raise failure[0]

    def _call(self, name: str, *arguments: Any,
              interrupted: Callable[[threading.Event], None] = lambda over: None) -> None:
        def body() -> None:
            with self._in_call() as handle:
                self._library.call(name, handle, *arguments)

        self._wait(body, interrupted)

    def _result(self, name: str, *arguments: Any,
                interrupted: Callable[[threading.Event], None] = lambda over: None) -> Result:
        return Result(self._library,
                      lambda out: self._call(name, *arguments, out, interrupted=interrupted))

    def _batch(self, name: str, *arguments: Any) -> Batch:
        """Of a call that Ctrl-C ends early; what it has got by then is for the next `collect`."""
        given = ctypes.c_void_p()

        def read() -> Batch:
            with Result.owner_of(self._library, given) as result:
                return read_batch(result, self._arrays)

        def interrupted(over: threading.Event) -> None:
            # Again and again: the call may not have its turn yet.
            while not over.wait(0.05):
                with self._in_call() as handle:
                    self._library.call("rollcast_trainer_interrupt", handle)
            if given.value:
                self._left.append(read())

        self._call(name, *arguments, ctypes.byref(given), interrupted=interrupted)
        return read()

    def _with_left(self, batch: Batch) -> Batch:
        parts, self._left = [*self._left, batch], []
        return Batch([t for part in parts for t in part], batch.live_version,
                     sum(part.groups for part in parts), batch.pending_groups, self._arrays)

    def _await_publish(self, over: threading.Event) -> None:
        try:
            over.wait()
        except BaseException:
            self._abandoned_publishes.append(over)
            raise

    def _close(self) -> None:
        self._over = True
        atexit.unregister(self._at_exit)
        with self._idle:
            handle, self._handle = self._handle, None
            while self._calls:
                self._idle.wait()  # the job is over, so they end
        if handle is not None:
            self._library.plain("rollcast_trainer_close", handle)
        self._kept.clear()

    def _at_exit(self) -> None:
        if os.getpid() != self._process:
            return  # a fork of the script has no part in the job
        self.fail("its script has ended without finishing the job (use the Client in a with block)")

    def _draw(
        self,
        group_size: Optional[int],
        sampling: Optional[Mapping[str, Any]],
        seed: Optional[int],
        in_flight: Optional[str],
        hidden: bool,
    ) -> Draw:
        # 0 is the library's word for the configured size.
        size = 0 if group_size is None else integer("group_size", group_size, 1, GROUP_SIZE_MAX)
        if sampling is not None and not isinstance(sampling, MappingABC):
            raise TypeError(f"sampling is a {type(sampling).__name__}; expected a dict")
        over = to_json("sampling.", sampling or {}).encode()
        number = None if seed is None else ctypes.pointer(
            ctypes.c_uint64(integer("seed", seed, 0, UINT64_MAX)))
        return Draw(size, over, number, _text("in_flight", in_flight), int(bool(hidden)))

    def _known_names(self) -> frozenset:
        if self._known is None:
            manifest = self.manifest()
            self._known = frozenset(t.name for t in manifest.tensors).union(manifest.aliases)
        return self._known

    def _gather(self, tensors: Tensors) -> Tuple[List[Tensor], List[Any]]:
        """The update's tensors, and what keeps their memory."""
        known = self._known_names()
        # Of anything else the next tensor may take the place of the one before.
        lazy = not isinstance(tensors, (MappingABC, ItemsView, list, tuple))
        given: List[Tensor] = []
        owners: List[Any] = []
        devices = set()
        for pair in _pairs(tensors):
            name, tensor = _pair(pair)
            del pair
            wire = tensor_rules.wire_name(name, known)
            if wire is None:
                continue
            tensor_rules.check(name, tensor)
            copied = lazy or not tensor_rules.is_contiguous(tensor) or (
                tensor_rules.on_device(tensor) and not self._takes_device_memory)
            if copied:
                tensor = tensor_rules.to_host(tensor)
            view = tensor_rules.view(name, tensor)
            entry = view.to_c(wire)
            if copied:
                packed = Tensor()
                with self._in_call() as handle:
                    self._library.call("rollcast_trainer_pack", handle, ctypes.byref(entry),
                                       ctypes.byref(packed))
                entry = dataclasses.replace(
                    view, address=packed.data, dtype=packed.dtype, owner=None).to_c(wire)
            else:
                owners.append(view.owner)
                if view.device is not None:
                    devices.add(view.device)
            given.append(entry)
            del tensor, view  # a generator's tensor goes before it makes the next
        if devices:
            import torch

            for device in devices:
                torch.cuda.synchronize(device)  # what is still being computed must be there
        return given, owners

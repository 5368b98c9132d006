"""What comes back from the ranks."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Iterator, List, Optional, Sequence, Union, overload

import numpy as np

from ._library import Result

Array = Any  # numpy.ndarray, or torch.Tensor with arrays="torch"


def to_torch(array: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(array)


def check_arrays(arrays: str) -> str:
    if arrays not in ("numpy", "torch"):
        raise ValueError(f'arrays is "{arrays}"; it must be "numpy" or "torch"')
    return arrays


@dataclasses.dataclass
class Trajectory:
    """One completion with all that a trainer needs of it. C = its tokens, P = the prompt's.

    Arrays are numpy or torch, as the client was asked for. Log-probabilities are natural logarithms,
    float32; `logprob_raw` is bit for bit what `Client.score` gives for the same tokens and policy version.
    """

    prompt_id: str
    group_id: int  #: unique in a run; the completions of one prompt share it
    sample_index: int  #: in [0, group_size)
    group_size: int
    prompt: Array  #: [P] int32 token ids; empty where a text was ended before a rank had it (rank -1)
    completion: Array  #: [C] int32 token ids
    logprob: Array  #: [C] float32, under softmax(logits / temperature): to train against
    logprob_raw: Array  #: [C] float32, under softmax(logits): temperature 1, as `Client.score` gives
    logprob_filtered: Optional[Array]  #: [C] float32, under what was drawn from; None without a
    # filter, and `logprob_raw` at temperature 0
    policy_version: Array  #: [C] int64, that drew the token
    hidden: Optional[Array]  #: [C, hidden size] float32 before the final norm; None unless asked for
    reward: float  #: NaN where there is none
    text: str  #: the completion decoded; empty without a tokenizer
    outcome: str  #: "completed", or why not: "aborted", "over_lag", "refused", ...
    finish_reason: str  #: "stop_id" (the id is the last token), "stop_string", "length", "abort", ...
    message: str  #: why, when the outcome is not "completed"
    live_version: int  #: of the policy when the trajectory was returned
    mixed_kv: bool  #: continued on keys and values of an older policy version
    attempt: int  #: how many earlier tries were too old
    rank: int  #: that generated it
    seed: int  #: of its draws
    temperature: float

    @property
    def policy_lag(self) -> int:
        """Versions that its oldest token is behind the live policy."""
        return self.live_version - int(self.policy_version[0]) if len(self.policy_version) else 0


@dataclasses.dataclass
class PaddedBatch:
    """B trajectories as rectangles, prompt and completion in one row, padded on the right to T.

    Position t of the arrays speaks of token input_ids[:, t]; a causal model predicts it from the
    logits at t - 1. So with `logits` [B, T, V] of `input_ids`, the log-probabilities to set against
    `logprob[:, 1:]` are log_softmax(logits[:, :-1] / temperature), taken at `input_ids[:, 1:]`.
    """

    input_ids: Array  #: [B, T] int64; `pad_id` outside
    attention_mask: Array  #: [B, T] int64; 1 where there is a token
    completion_mask: Array  #: [B, T] bool; where there is a token of the completion
    logprob: Array  #: [B, T] float32; 0 outside the completion
    policy_version: Array  #: [B, T] int64; -1 outside the completion
    reward: Array  #: [B] float32
    temperature: Array  #: [B] float32, of the draws; 0 = greedy, whose `logprob` is at temperature 1
    group: Array  #: [B] int64; 0, 1, ... in order of appearance


def _nearest_multiple(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


class Batch(Sequence[Trajectory]):
    """Trajectories, whole groups at a time, in order: a sequence, so

        for t in batch:
            print(t.prompt_id, t.reward, t.text)
        rewards = batch.padded().reward  # [B] float32, in the same order; NaN where there is none
    """

    def __init__(
        self,
        trajectories: Sequence[Trajectory],
        live_version: int = 0,
        groups: int = 0,
        pending_groups: int = 0,
        arrays: str = "numpy",
    ) -> None:
        self._rows = list(trajectories)
        self.live_version = live_version  #: that the policy lag was checked against
        self.groups = groups  #: how many have come with this call
        self.pending_groups = pending_groups  #: submitted and not returned yet
        self._arrays = arrays

    @overload
    def __getitem__(self, index: int) -> Trajectory: ...

    @overload
    def __getitem__(self, index: slice) -> "Batch": ...

    def __getitem__(self, index: Union[int, slice]) -> Union[Trajectory, "Batch"]:
        return self._with(self._rows[index]) if isinstance(index, slice) else self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Trajectory]:
        return iter(self._rows)

    def __repr__(self) -> str:
        return f"Batch({len(self)} trajectories, live version {self.live_version})"

    def _with(self, rows: List[Trajectory]) -> "Batch":
        return Batch(rows, self.live_version, self.groups, self.pending_groups, self._arrays)

    def completed(self) -> "Batch":
        """Those that were generated, scored and young enough: what may be trained on."""
        return self._with([t for t in self._rows if t.outcome == "completed"])

    def padded(
        self, pad_id: int = 0, multiple_of: int = 1, arrays: Optional[str] = None
    ) -> PaddedBatch:
        """The rectangles of PaddedBatch. T is the longest row, rounded up to `multiple_of`;
        `arrays` is "numpy" or "torch" (default: that of the client)."""
        rows = self._rows
        if multiple_of < 1:
            raise ValueError(f"multiple_of is {multiple_of}; it must be at least 1")
        lengths = [len(t.prompt) + len(t.completion) for t in rows]
        shape = (len(rows), _nearest_multiple(max(lengths, default=0), multiple_of))
        ids = np.full(shape, pad_id, np.int64)
        attention = np.zeros(shape, np.int64)
        mask = np.zeros(shape, bool)
        logprob = np.zeros(shape, np.float32)
        version = np.full(shape, -1, np.int64)
        groups: Dict[int, int] = {}
        for i, (t, end) in enumerate(zip(rows, lengths)):
            begin = len(t.prompt)
            ids[i, :begin] = np.asarray(t.prompt)
            ids[i, begin:end] = np.asarray(t.completion)
            attention[i, :end] = 1
            mask[i, begin:end] = True
            logprob[i, begin:end] = np.asarray(t.logprob)
            version[i, begin:end] = np.asarray(t.policy_version)
        reward = np.array([t.reward for t in rows], np.float32)
        group = np.array([groups.setdefault(t.group_id, len(groups)) for t in rows], np.int64)
        temperature = np.array([t.temperature for t in rows], np.float32)
        columns = [ids, attention, mask, logprob, version, reward, temperature, group]
        if check_arrays(arrays or self._arrays) == "torch":
            columns = [to_torch(column) for column in columns]
        return PaddedBatch(*columns)


def read_batch(result: Result, arrays: str) -> Batch:
    """The trajectories of a result of rollcast_trainer_collect, _cancel or _rollout."""
    head = result.json()
    give = to_torch if arrays == "torch" else (lambda array: array)

    def parts(name: str, lengths: str) -> List[np.ndarray]:
        ends = np.cumsum(result.column(lengths))
        return np.split(result.column(name), ends)[:-1]

    prompt = parts("prompt", "prompt_length")
    completion, logprob, logprob_raw, version = (
        parts(name, "completion_length")
        for name in ("completion", "logprob", "logprob_raw", "policy_version"))
    filtered = parts("logprob_filtered", "filtered_length")
    hidden = parts("hidden", "hidden_length")
    reward = result.column("reward")
    rows = []
    for i, row in enumerate(head["trajectories"]):
        live = row.pop("live_version_at_return")
        count = len(completion[i])
        rows.append(Trajectory(
            prompt=give(prompt[i]),
            completion=give(completion[i]),
            logprob=give(logprob[i]),
            logprob_raw=give(logprob_raw[i]),
            logprob_filtered=give(filtered[i]) if len(filtered[i]) else None,
            policy_version=give(version[i]),
            hidden=give(hidden[i].reshape(count, -1)) if len(hidden[i]) else None,
            reward=float(reward[i]),
            live_version=live,
            **row))
    return Batch(rows, head["live"], head["groups"], head["pending_groups"], arrays)

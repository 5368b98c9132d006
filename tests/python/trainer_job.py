"""Trainers of small jobs, run under mpirun by tests/python/python_client_test.cc.

usage: trainer_job.py CASE CONFIG MODEL, with the toy model's folder; numpy only.
"""
import atexit
import ctypes
import json
import os
import pathlib
import signal
import struct
import sys
import threading
import time

import numpy as np
import rollcast

PROMPTS = ["one ", {"id": "two", "text": "2 = ", "answer": "e"}, [72, 101, 108, 108, 111]]
GROUP = 4


def read_weights(folder):
    """The checkpoint's tensors as bfloat16 bits (uint16)."""
    data = (pathlib.Path(folder) / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, info in header.items():
        assert info["dtype"] == "BF16", info
        begin, end = info["data_offsets"]
        bits = np.frombuffer(data[8 + length + begin:8 + length + end], np.uint16)
        tensors[name] = bits.reshape(info["shape"])
    return tensors


def to_float32(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def expect_error(text, call, kind=rollcast.RollcastError):
    try:
        call()
    except kind as error:
        assert text in str(error), f"expected {text!r} in {error}"
        return error
    raise AssertionError(f"no {kind.__name__} with {text!r}")


def bits(array):
    return np.asarray(array).view(np.uint32).tolist()


def rollout(client, _):
    assert (client.rank, client.workers, len(client.hosts)) == (0, [1, 2], 3)
    assert client.config["rollout"]["group_size"] == GROUP
    assert client.config["sampling"]["max_tokens"] == 10
    batch = client.rollout(PROMPTS)
    assert len(batch) == len(PROMPTS) * GROUP and batch.pending_groups == 0
    assert [t.prompt_id for t in batch[::GROUP]] == ["1", "two", "3"]
    assert [t.sample_index for t in batch[:GROUP]] == list(range(GROUP))
    assert batch[-1].prompt.tolist() == PROMPTS[2]
    for t in batch:
        assert t.outcome == "completed", t.message
        assert t.completion.dtype == np.int32 and 1 <= len(t.completion) <= 10
        assert t.logprob.dtype == np.float32 and t.policy_version.dtype == np.int64
        assert len(t.logprob) == len(t.logprob_raw) == len(t.policy_version) == len(t.completion)
        assert t.policy_version.tolist() == [0] * len(t.completion) and t.policy_lag == 0
        assert t.reward == float("e" in t.text), (t.reward, t.text)
        assert t.logprob_filtered is None and t.hidden is None and t.temperature == 1.0
        # What decoding recorded is what scoring gives, bit for bit.
        score = client.score(np.concatenate([t.prompt, t.completion]))
        assert bits(score.logprob_raw[len(t.prompt) - 1:]) == bits(t.logprob_raw)
        assert score.version == 0 and score.logits is None
    first = batch[0]
    tokens = first.prompt.tolist() + first.completion.tolist()
    logits = client.score(tokens, logits=True).logits
    assert logits.shape == (len(tokens), 320)
    wide = logits[len(first.prompt) - 1:-1].astype(np.float64)
    expected = wide[np.arange(len(first.completion)), first.completion] - np.log(
        np.exp(wide - wide.max(1, keepdims=True)).sum(1)) - wide.max(1)
    assert np.abs(expected - first.logprob_raw).max() < 1e-4

    padded = batch.padded(pad_id=7, multiple_of=16)
    assert padded.input_ids.shape == (12, 16) and padded.input_ids.dtype == np.int64
    for i, t in enumerate(batch):
        begin, end = len(t.prompt), len(t.prompt) + len(t.completion)
        assert padded.input_ids[i, :end].tolist() == t.prompt.tolist() + t.completion.tolist()
        assert (padded.input_ids[i, end:] == 7).all()
        assert padded.attention_mask[i].tolist() == [1] * end + [0] * (16 - end)
        assert padded.completion_mask[i].nonzero()[0].tolist() == list(range(begin, end))
        assert bits(padded.logprob[i, begin:end]) == bits(t.logprob)
        versions = [-1] * begin + [0] * (end - begin) + [-1] * (16 - end)
        assert padded.policy_version[i].tolist() == versions
    assert padded.group.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert padded.reward.tolist() == [t.reward for t in batch]
    assert padded.temperature.tolist() == [1.0] * 12

    # Draws: those of a seed are the same again, those of another submission are not.
    def drawn(**options):
        return [t.completion.tolist() for t in client.rollout(PROMPTS, 2, **options)]

    assert drawn(seed=5) == drawn(seed=5)
    assert drawn() != drawn()
    greedy = client.rollout(PROMPTS[:1], 2, {"temperature": 0, "max_tokens": 3}, hidden=True)
    assert greedy[0].completion.tolist() == greedy[1].completion.tolist()
    assert greedy[0].hidden.shape == (len(greedy[0].completion), 64)
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    chat = client.rollout(
        [{"id": "m", "messages": [{"role": "user", "content": "hi"}]}, {"id": "t", "text": text}], 1)
    assert chat[0].prompt.tolist() == chat[1].prompt.tolist()
    filtered = client.rollout(PROMPTS[:1], 1, {"top_k": 5})[0]
    assert len(filtered.logprob_filtered) == len(filtered.completion)
    assert (filtered.logprob_filtered > filtered.logprob).all()

    expect_error('did you mean "temperature"', lambda: drawn(sampling={"temperatur": 1}))
    expect_error("top_p: expected", lambda: drawn(sampling={"top_p": 2.0}))
    own = client.rollout([{"text": "a", "sampling": {"max_tokens": 2, "temperature": 0.5}}, "b"], 1,
                         {"max_tokens": 3, "ignore_eos": True, "stop_ids": np.array([7])})
    assert [(len(t.completion), t.temperature) for t in own] == [(2, 0.5), (3, 1.0)]
    assert own.padded().temperature.tolist() == [0.5, 1.0]
    expect_error("prompts:2: \"text\" is empty", lambda: client.rollout(["a", ""]))
    expect_error("group_size is 0: must be at least 1", lambda: client.rollout(PROMPTS, 0))
    expect_error("tokens to score", lambda: client.score([1]))
    expect_error("99999", lambda: client.score([1, 99999]))
    expect_error("single prompt", lambda: client.rollout("a"), TypeError)
    expect_error("prompts is a NoneType", lambda: client.rollout(None), TypeError)
    expect_error("sampling is a int", lambda: client.rollout(["a"], sampling=0), TypeError)
    expect_error("in_flight is a int", lambda: client.rollout(["a"], in_flight=1), TypeError)
    # A prompt that no rank can take has an outcome, and spoils nothing.
    refused = client.rollout([[1] * 5000, [5]], 1)
    assert [t.outcome for t in refused] == ["refused", "completed"], refused[0].message
    assert len(refused.completed()) == 1 and np.isnan(refused[0].reward) and refused[0].message

    manifest = client.manifest()
    shapes = {t.name: (t.dtype, t.shape) for t in manifest.tensors}
    assert shapes["model.embed_tokens.weight"] == ("bfloat16", (320, 64))
    assert manifest.aliases == {"lm_head.weight": "model.embed_tokens.weight"}
    stats = client.stats()
    assert stats.version == 0 and stats.returned > 12 and stats.lost_ranks == []
    assert sorted(worker["rank"] for worker in stats.workers) == [1, 2]
    # The ranks hear from the trainer while its interpreter computes: twice the limit, and more.
    end = time.monotonic() + 4
    while time.monotonic() < end:
        sum(range(100000))
    assert len(client.rollout(PROMPTS[:1], 1)) == 1


def submit(client, _):
    ids = client.submit(PROMPTS, 2)
    assert len(ids) == 3 and len(set(ids)) == 3
    first = client.collect(1)
    assert first.groups == 1 and len(first) == 2 and first.pending_groups == 2
    rest = client.collect()
    assert rest.groups == 2 and rest.pending_groups == 0
    assert {t.group_id for t in first} | {t.group_id for t in rest} == set(ids)
    assert len(client.collect(timeout=0.01)) == 0

    # What a rollout that was late has left can be ended.
    long = {"max_tokens": 480, "ignore_eos": True}
    expect_error("go on: collect or cancel them",
                 lambda: client.rollout(PROMPTS, 64, long, timeout=0.01))
    expect_error("are pending; collect or cancel them first", lambda: client.rollout(PROMPTS, 1))
    cancelled = client.cancel()
    assert cancelled.groups == 3 and cancelled.pending_groups == 0 and len(cancelled) == 3 * 64
    cut = [t for t in cancelled if t.outcome == "aborted"]
    assert len(cut) == 3 * 64 - len(cancelled.completed()) > 0
    assert all(t.message == "cancelled by the trainer" and len(t.completion) < 480 for t in cut)
    assert client.cancel().groups == 0
    assert len(client.rollout(PROMPTS, 1).completed()) == 3
    # Several threads: calls wait for one another.
    scores = []

    def score():
        for _ in range(5):
            scores.append(client.score([1, 2, 3]).logprob_raw)

    threads = [threading.Thread(target=score) for _ in range(3)]
    for thread in threads:
        thread.start()
    batch = client.rollout(PROMPTS, 2)
    for thread in threads:
        thread.join()
    assert len(batch) == 6 and len(scores) == 15
    assert all(bits(s) == bits(scores[0]) for s in scores)


def publish(client, model):
    weights = read_weights(model)
    wide = {name: to_float32(w) for name, w in weights.items()}
    before = client.score([1, 2, 3, 4]).logprob_raw
    report = client.publish(weights)
    assert (report.version, report.committed, report.error) == (1, True, "")
    assert client.live_version == 1 and report.bytes == sum(w.nbytes for w in weights.values())
    assert report.total_s > 0 and report.transport and report.mode == "staged"
    digest = report.digest
    assert bits(client.score([1, 2, 3, 4]).logprob_raw) == bits(before)

    # However the same weights come, the ranks hold the same bits.
    made = []

    def gathered():
        for name, w in wide.items():
            tensor = w + np.float32(0)
            made.append(tensor)
            yield "module._orig_mod." + name, tensor
            tensor[...] = np.nan  # gone, as when the next shards are gathered

    turned = {n: np.asfortranarray(w) if w.ndim > 1 else w.repeat(2)[::2] for n, w in wide.items()}
    assert not turned["model.norm.weight"].flags.c_contiguous
    for same in (wide, gathered(), turned, iter(weights.items()),
                 {"base_model.model." + n: w for n, w in weights.items()},
                 {**weights, "lm_head.weight": weights["model.embed_tokens.weight"],
                  "model.rotary_emb.inv_freq": np.zeros(8, np.float32)}):
        version = client.live_version
        report = client.publish(same)
        assert (report.digest, report.version) == (digest, version + 1)
    assert all(np.isnan(m).all() for m in made)

    # An iterable may use its memory again, too.
    class Gathered:
        def __iter__(self):
            memory = np.empty(max(w.size for w in wide.values()), np.float32)
            for name, w in wide.items():
                memory[:w.size] = w.ravel()
                yield name, memory[:w.size].reshape(w.shape)

    assert client.publish(Gathered()).digest == digest
    # Of threads that publish copies at the same time each publishes its own.
    factors = (0.5, 2.0)
    expected = [client.publish({n: w * np.float32(f) for n, w in wide.items()}).digest
                for f in factors]
    assert len({digest, *expected}) == 3
    found = [[], []]

    def publish_copies(which):
        for _ in range(4):
            copies = ((n, w * np.float32(factors[which])) for n, w in wide.items())
            found[which].append(client.publish(copies).digest)

    threads = [threading.Thread(target=publish_copies, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[d] * 4 for d in expected], (found, expected)

    # Another policy: what comes back says so, and is scored under it.
    changed = {name: w * np.float32(1.5) for name, w in wide.items()}
    report = client.publish(changed, version=40, mode="in_place", in_flight="recompute")
    assert (report.version, report.mode, client.live_version) == (40, "in_place", 40)
    assert report.digest != digest
    after = client.score([1, 2, 3, 4])
    assert after.version == 40 and bits(after.logprob_raw) != bits(before)
    t = client.rollout(PROMPTS[:1], 1)[0]
    assert set(t.policy_version.tolist()) == {40} and t.live_version == 40
    score = client.score(np.concatenate([t.prompt, t.completion]))
    assert bits(score.logprob_raw[len(t.prompt) - 1:]) == bits(t.logprob_raw)

    norm = {"model.norm.weight": wide["model.norm.weight"]}
    assert client.publish(norm, partial=True).bytes == 128
    assert client.publish(norm, partial=True, names=["module.model.norm.weight"]).version == 42
    half = {n: w.astype(np.float16) for n, w in norm.items()}
    assert client.publish(iter(half.items()), partial=True).version == 43

    # Errors name the tensor, and nothing is sent.
    name = "model.norm.weight"
    for wrong, text in (
            ({**wide, name: np.ones(3, np.float32)}, f"tensor {name}: shape [3], expected [64]"),
            ({**wide, name: np.ones(64)}, f"tensor {name}: dtype float64 cannot be published"),
            ({**wide, name: [1.0] * 64}, f"tensor {name}: a list"),
            ({**wide, "model.layers.0.lora_A.weight": wide[name]},
             "tensor model.layers.0.lora_A.weight: the model has no tensor of this name"),
            (norm, "missing from a whole update"),
            ([*wide.items(), (name, wide[name])], f"tensor {name}: given twice"),
            ({**wide, "lm_head.weight": wide["model.embed_tokens.weight"] + 1},
             "tensor lm_head.weight: differs from model.embed_tokens.weight")):
        expect_error(text, lambda: client.publish(wrong))
        expect_error(text, lambda: client.publish(iter(list(dict(wrong).items()))
                                                  if isinstance(wrong, dict) else iter(wrong)))
    hidden = np.ma.masked_array(wide[name], mask=True)
    expect_error(f"tensor {name}: a MaskedArray", lambda: client.publish({**wide, name: hidden}))
    for wrong, text in ((None, "tensors is a NoneType"), (norm[name], "tensors has a float32"),
                        ({0: wide[name]}, "tensors has a tuple"), ([wide[name]], "has a ndarray"),
                        ("weights", "tensors is a str")):
        expect_error(text, lambda: client.publish(wrong), TypeError)
    expect_error("names is no list of texts", lambda: client.publish(norm, partial=True, names=name),
                 TypeError)
    expect_error("mode is a int", lambda: client.publish(norm, partial=True, mode=1), TypeError)
    expect_error("the partial update does not name it",
                 lambda: client.publish(wide, partial=True, names=["model.embed_tokens.weight"]))
    expect_error("staged", lambda: client.publish(norm, partial=True, mode="slowly"))
    assert client.live_version == 43
    refused = expect_error("version", lambda: client.publish(wide, version=2), rollcast.UpdateError)
    assert not refused.report.committed and client.live_version == 43
    assert client.publish(wide).digest == digest


def arguments(client, model):
    """What C cannot take is an error at once, and the job goes on."""
    for size in (0, 4097, 10**9, 2**31 - 1, 2**31, 2**32, 2**32 + 1, -1, -2**32 + 4):
        for call in (client.rollout, client.submit):
            expect_error(f"group_size is {size}: must be at least 1 and at most 4096",
                         lambda: call(["a"], group_size=size))
    expect_error("group_size is 2.0: must be an integer", lambda: client.rollout(["a"], 2.0))
    expect_error(f"seed is {2**64}: must be", lambda: client.rollout(["a"], 1, seed=2**64))
    for groups in (0, 2**32 + 1, 1.5):
        expect_error(f"groups is {groups}: must be", lambda: client.collect(groups))
    norm = {"model.norm.weight": np.ones(64, np.float32)}
    for version in (-1, 2**63, 2**64 + 7, 1.0):
        expect_error(f"version is {version}: must be",
                     lambda: client.publish(norm, version, partial=True))

    for tokens, text in (([1, 2.7, 3], "tokens[1] is 2.7: must be an integer"),
                         ([2**32 + 1, 1], f"tokens[0] is {2**32 + 1}: must be"),
                         (np.array([1, 2**32 + 1]), f"tokens[1] is {2**32 + 1}: must be"),
                         ([1, -1], "tokens[1] is -1: must be"),
                         ([1, "2"], "must be an integer"),
                         ([[1, 2]], "tokens has shape [1, 2]: expected [N]"),
                         ([], "0 tokens to score")):
        expect_error(text, lambda: client.score(tokens))
    expected = bits(client.score([1, 2, 3]).logprob_raw)
    for dtype in (np.uint8, np.int16, np.int32, np.int64, np.uint64):
        assert bits(client.score(np.array([1, 2, 3], dtype)).logprob_raw) == expected
        assert bits(client.score([dtype(t) for t in (1, 2, 3)]).logprob_raw) == expected
    assert bits(client.score(np.array([1, 0, 2, 0, 3])[::2]).logprob_raw) == expected
    for tokens, text in (([1, 2.7, 3], '"tokens"[1] is 2.7'), ([2**32 + 1], f"is {2**32 + 1}"),
                         (np.array([1.0, 2.5]), '"tokens"[0] is 1.0'), ([True], '"tokens"[0]')):
        expect_error(text, lambda: client.rollout([tokens], 1))
        expect_error(text, lambda: client.rollout([{"tokens": tokens}], 1))
    assert client.rollout([np.array([1, 2], np.uint16)], 1)[0].prompt.tolist() == [1, 2]

    nan, inf = float("nan"), float("inf")
    for wrong in (nan, inf, -inf, np.float32("nan")):
        finite = f"is {float(wrong)}: must be a finite number"
        expect_error(f"sampling.temperature {finite}",
                     lambda: client.rollout(["a"], 1, {"temperature": wrong}))
        for row, name in (({"sampling": {"top_p": wrong}}, "sampling.top_p"),
                          ({"answer": wrong}, "answer"),
                          ({"metadata": {"x": [1, np.array([2, wrong])]}}, "metadata.x[1][1]")):
            expect_error(f"prompts:2: {name} {finite}",
                         lambda: client.submit(["a", {"text": "b", **row}]))
    expect_error("prompts:1: tokens[1] is nan: must be", lambda: client.submit([[1, nan]]))
    expect_error("sampling.top_k: expected an integer from -1 to 2147483647, got -2",
                 lambda: client.rollout(["a"], 1, {"top_k": -2}))
    for wrong in (nan, inf, -inf, -1, 1e10, "soon"):
        text = f"timeout is {wrong!r}: must be a number of seconds"
        for call in (lambda: client.rollout(["a"], 1, timeout=wrong),
                     lambda: client.collect(timeout=wrong), lambda: client.cancel(wrong),
                     lambda: client.finish(wrong),
                     lambda: client.score([1, 2], timeout=wrong),
                     lambda: client.manifest(wrong), lambda: client.stats(wrong)):
            expect_error(text, call)
        for option in ("deadline", "drain_limit"):
            expect_error(f"{option} is {wrong!r}: must be a number of seconds",
                         lambda: client.publish(norm, partial=True, **{option: wrong}))
    expect_error("deadline is 0: must be", lambda: client.publish(norm, partial=True, deadline=0))
    assert client.collect(timeout=0).groups == 0
    assert client.live_version == 0
    report = client.publish(norm, np.int64(7), partial=True, deadline=60, drain_limit=np.float32(5))
    assert report.committed and client.live_version == 7
    assert len(client.rollout(["a"], np.int32(3), seed=2**64 - 1, timeout=60)) == 3


def own_mpi(client, _):
    assert len(client.rollout(PROMPTS, 1)) == 3


def begin_mpi(level):
    """As a script that uses MPI itself. Returns its library."""
    mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
    provided = ctypes.c_int()
    assert mpi.MPI_Init_thread(None, None, level, ctypes.byref(provided)) == 0
    assert provided.value >= level
    return mpi


def fails(client, _):
    client.rollout(PROMPTS, 1)
    # Other threads are in the library when the job ends, or wait for their turn there.
    client.submit(PROMPTS, 64, {"max_tokens": 480, "ignore_eos": True})

    def until_over(call):
        try:
            while True:
                call()
        except rollcast.RollcastError:
            pass

    for call in (client.collect, client.stats, lambda: client.score([1, 2]), lambda: client.live_version):
        threading.Thread(target=until_over, args=(call,)).start()
    time.sleep(0.2)
    raise ValueError("the loss is not finite:\n  loss: nan")


def interrupted(client, _):
    # As when Ctrl-C comes while a call waits for the ranks.
    threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    while True:
        client.rollout(PROMPTS, 64, {"max_tokens": 400})


def goes_on(client, model):
    """Ctrl-C in a call, and the script goes on."""
    long = {"max_tokens": 480, "ignore_eos": True}

    def interrupt(call, after=0.3):
        timer = threading.Timer(after, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        begin = time.monotonic()
        try:
            call()
        except KeyboardInterrupt:
            return time.monotonic() - begin
        raise AssertionError("no KeyboardInterrupt")

    # Nothing is lost of what is pending, and nothing waits for it.
    many = ["a", "b", "c"] * 16
    client.submit(many, 64, long)
    assert interrupt(client.collect) < 5
    pending = client.collect(timeout=0)
    assert pending.groups + pending.pending_groups == len(many) and pending.pending_groups > 0
    begin = time.monotonic()
    rest = client.cancel()
    assert pending.groups + rest.groups == len(many) and time.monotonic() - begin < 5
    assert len(pending) + len(rest) == len(many) * 64

    assert interrupt(lambda: client.rollout(many, 64, long)) < 5
    begin = time.monotonic()
    cancelled = client.cancel()
    assert cancelled.groups == len(many) and time.monotonic() - begin < 5
    assert any(t.outcome == "aborted" for t in cancelled)
    assert len(client.rollout(PROMPTS, 2).completed()) == 6

    # What an update sends is the script's again only once it has ended.
    weights = {n: to_float32(w) for n, w in read_weights(model).items()}
    digest = client.publish(weights).digest
    call = client._library.call

    def late(name, *arguments):
        if name == "rollcast_trainer_publish":
            time.sleep(1)
        call(name, *arguments)

    client._library.call = late
    interrupt(lambda: client.publish(weights))
    client._library.call = call
    assert client.live_version == 2
    for w in weights.values():
        w[...] = np.nan
    norm = {"model.norm.weight": read_weights(model)["model.norm.weight"]}
    assert client.publish(norm, partial=True).digest == digest

    # `cancel` of another thread ends a rollout that waits.
    seen = []

    def wait():
        try:
            client.rollout(many, 64, long)
        except rollcast.RollcastError as error:
            seen.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.3)
    begin = time.monotonic()
    assert client.cancel().groups == len(many) and time.monotonic() - begin < 5
    thread.join()
    assert len(seen) == 1 and "go on: collect or cancel them" in seen[0], seen

    child = os.fork()
    if child == 0:
        try:
            expect_error("this is a fork of the trainer", client.stats)
            client.__exit__(None, None, None)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def killed(client, model):
    client.rollout(PROMPTS, 1)
    pathlib.Path(model, "started").touch()
    try:
        while True:
            client.rollout(PROMPTS, 1)
    except rollcast.RollcastError as error:
        print("seen by the script:", error, flush=True)
        for call in (lambda: client.publish(read_weights(model)),
                     lambda: client.rollout(PROMPTS, 1), lambda: client.submit(PROMPTS, 10**9),
                     lambda: client.collect(), lambda: client.score([1]), client.stats):
            expect_error(str(error), call)
        raise


def main():
    case, config, model = sys.argv[1:]
    if case == "forgotten":
        client = rollcast.Client(config, {"model.path": model})
        client.rollout(PROMPTS, 1)
        return
    if case == "own_mpi":
        atexit.register(begin_mpi(3).MPI_Finalize)  # MPI_THREAD_MULTIPLE
    if case == "one_thread":
        begin_mpi(1)  # MPI_THREAD_FUNNELED
    settings = {"model.path": model, "rollout.output": os.path.join(model, "out.h5")}
    with rollcast.Client(config, settings) as client:
        globals()[case](client, model)
    expect_error("the job is over", lambda: client.live_version)
    expect_error("has joined a job already", lambda: rollcast.Client(config, settings))
    print("the script has ended well")


main()

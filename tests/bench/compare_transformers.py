#!/usr/bin/env python3
"""Decode speed of rollcast and of transformers on one CPU, in one run.

Both decode at the same mean context and batch, greedily, from random prompts of token ids, on the
same number of threads, and both are timed from inside one process with the weights loaded and the
prompts prefilled: rollcast by `rollcast bench decode --model`, log-probabilities included;
transformers by a loop of its forward pass and argmax, with its default cache. The systems take
turns, so that a change of the machine's load meets all of them. The last column is the share of
greedy tokens that agree with transformers in float32, from `rollcast generate`.

Needs the Python packages torch and transformers, a built rollcast and a model folder.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


def options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=ROOT / "build/models/SmolLM2-135M-Instruct")
    parser.add_argument("--rollcast", default=ROOT / "build/release/rollcast")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--context", type=int, default=256, help="mean tokens of a sequence")
    parser.add_argument("--tokens", type=int, default=64, help="decoded tokens a prompt")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    if min(args.batch + [args.tokens, args.repeats, args.threads]) < 1:
        parser.error("--batch, --tokens, --repeats and --threads must be at least 1")
    if args.context <= args.tokens // 2:
        parser.error("--context must be above half of --tokens: that much is the prompt")
    for path in (pathlib.Path(args.model) / "config.json", pathlib.Path(args.rollcast)):
        if not path.exists():
            parser.error(f"{path} is missing")
    missing = [p for p in ("torch", "transformers") if importlib.util.find_spec(p) is None]
    if missing:
        parser.error(f"Python packages are missing: pip install {' '.join(missing)}")
    return args


class Rollcast:
    name = "rollcast"

    def __init__(self, args, folder):
        self.args, self.folder = args, folder

    def settings(self, batch, length):
        settings = [
            "kernels.device=cpu",
            f"kernels.threads={self.args.threads}",
            f"engine.max_running={batch}",
            # All prompts are prefilled in one step, so that the sequences begin together.
            f"engine.max_batched_tokens={batch * length}",
        ]
        return [x for s in settings for x in ("--set", s)]

    def output(self, *command):
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, command[:2]))} failed: {done.stderr.strip()}")
        return done.stdout

    def rate(self, prompts):
        """Decoded tokens a second."""
        batch = len(prompts)
        line = self.output(
            *(self.args.rollcast, "bench", "decode", "--model", self.args.model, "--batch", batch),
            *("--context", self.args.context, "--steps", self.args.tokens, "--repeats", 1),
            *("--temperature", 0, *self.settings(batch, self.args.context)),
        )
        return json.loads(line)["tokens_per_s"]

    def greedy(self, prompts):
        """The tokens of each prompt."""
        rows, output = self.folder / "prompts.jsonl", self.folder / "out.h5"
        rows.write_text(
            "".join(json.dumps({"id": str(i), "tokens": p}) + "\n" for i, p in enumerate(prompts))
        )
        self.output(
            *(self.args.rollcast, "generate", "--model", self.args.model, "--prompts", rows),
            *("--output", output, "--overwrite", "--temperature", 0, "--ignore-eos"),
            *("--max-tokens", self.args.tokens, "--group-size", 1),
            *self.settings(len(prompts), len(prompts[0])),
        )
        lines = self.output(self.args.rollcast, "inspect", output, "--jsonl")
        drawn = {int(r["prompt_id"]): r["completion"] for r in map(json.loads, lines.splitlines())}
        return [drawn[i] for i in range(len(prompts))]


class Transformers:
    def __init__(self, args, dtype):
        import torch
        import transformers

        transformers.utils.logging.disable_progress_bar()
        torch.set_num_threads(args.threads)
        self.args = args
        self.name, self.torch = f"transformers {dtype}", torch
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            args.model, dtype=getattr(torch, dtype)
        ).eval()

    def decode(self, prompts):
        """Seconds of decoding after the prefill, and the tokens of each prompt."""
        with self.torch.inference_mode():
            out = self.model(self.torch.tensor(prompts), use_cache=True, logits_to_keep=1)
            drawn = [out.logits[:, -1].argmax(-1, keepdim=True)]
            begin = time.perf_counter()
            for _ in range(self.args.tokens):
                out = self.model(drawn[-1], past_key_values=out.past_key_values, use_cache=True)
                drawn.append(out.logits[:, -1].argmax(-1, keepdim=True))
            seconds = time.perf_counter() - begin
            return seconds, self.torch.cat(drawn[:-1], 1).tolist()

    def rate(self, prompts):
        return len(prompts) * self.args.tokens / self.decode(prompts)[0]

    def greedy(self, prompts):
        return self.decode(prompts)[1]


def same(a, b):
    """Share of the tokens before, and without, the first that differs."""
    agreed = 0
    for x, y in zip(a, b):
        agreed += next((i for i, (p, q) in enumerate(zip(x, y)) if p != q), len(x))
    return agreed / sum(map(len, a))


def main():
    args = options()
    vocabulary = json.loads((pathlib.Path(args.model) / "config.json").read_text())["vocab_size"]
    rates, agreed, load = {}, {}, [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory() as folder:
        systems = [Transformers(args, "float32"), Transformers(args, "bfloat16")]
        systems.insert(0, Rollcast(args, pathlib.Path(folder)))
        for batch in args.batch:
            draw = random.Random(batch)
            length = args.context - args.tokens // 2
            prompts = [draw.choices(range(vocabulary), k=length) for _ in range(batch)]
            drawn = {s.name: s.greedy(prompts) for s in systems}
            for system in systems:
                agreed[batch, system.name] = same(
                    drawn[system.name], drawn["transformers float32"]
                )
            for repeat in range(args.repeats):
                for system in systems:
                    print(f"batch {batch}, repeat {repeat + 1}, {system.name}", file=sys.stderr)
                    rates.setdefault((batch, system.name), []).append(system.rate(prompts))
                    load.append(os.getloadavg()[0])

    name, cores = pathlib.Path(args.model).name, os.cpu_count()
    print(f"{name}: {args.tokens} decoded tokens a sequence around a context of {args.context},")
    print(f"{args.threads} of {cores} cores, median of {args.repeats} (min to max).")
    print(f"The load average was {min(load):.1f} to {max(load):.1f}.")
    if max(load) > args.threads + 1:
        print("Others used the machine: these figures do not show what it can do.")
    print()
    print("| batch | system | tokens/s | rollcast is faster by | tokens as transformers float32 |")
    print("|--:|--|--:|--:|--:|")
    for batch in args.batch:
        ours = statistics.median(rates[batch, Rollcast.name])
        for system in systems:
            r = rates[batch, system.name]
            median = statistics.median(r)
            print(
                f"| {batch} | {system.name} | {median:.1f} ({min(r):.1f} to {max(r):.1f}) "
                f"| {ours / median:.2f} | {100 * agreed[batch, system.name]:.1f}% |"
            )


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Decode speed of `rollcast generate` and of transformers on one CPU, in one run.

Every system continues the same random prompts of token ids greedily, never stopping at an
end-of-sequence id, on the same number of threads. The systems take turns, so that a change of the
machine's load meets all of them. What is shown is decoding alone: of rollcast, the time of a run
with TOKENS + 1 tokens a prompt less that of a run with 1; of transformers, the time of the TOKENS
steps after the prefill, in a loop of its forward pass and argmax with its default cache.

Needs the Python packages torch and transformers, a built rollcast and a model folder.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TIME = re.compile(r" prompts in ([0-9.]+) s \(")


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

    def run(self, prompts, tokens):
        """Seconds from the loaded model to the last token, and the tokens of each prompt."""
        rows, output = self.folder / "prompts.jsonl", self.folder / "out.h5"
        rows.write_text(
            "".join(json.dumps({"id": str(i), "tokens": p}) + "\n" for i, p in enumerate(prompts))
        )
        settings = [
            "kernels.device=cpu",
            f"kernels.threads={self.args.threads}",
            f"engine.max_running={len(prompts)}",
            # All prompts are prefilled in one step, so that the sequences begin together.
            f"engine.max_batched_tokens={sum(map(len, prompts))}",
        ]
        command = [self.args.rollcast, "generate", "--model", self.args.model, "--prompts", rows]
        command += ["--output", output, "--overwrite", "--temperature", "0", "--ignore-eos"]
        command += ["--max-tokens", str(tokens)] + [x for s in settings for x in ("--set", s)]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{self.args.rollcast} generate failed: {done.stderr.strip()}")
        inspect = [str(self.args.rollcast), "inspect", str(output), "--jsonl"]
        lines = subprocess.run(inspect, capture_output=True, text=True, check=True).stdout
        drawn = {int(r["prompt_id"]): r["completion"] for r in map(json.loads, lines.splitlines())}
        return float(TIME.search(done.stdout).group(1)), [drawn[i] for i in range(len(prompts))]

    def decode(self, prompts, tokens):
        first, _ = self.run(prompts, 1)
        whole, drawn = self.run(prompts, tokens + 1)
        return whole - first, drawn


class Transformers:
    def __init__(self, args, dtype):
        import torch
        import transformers

        transformers.utils.logging.disable_progress_bar()
        torch.set_num_threads(args.threads)
        self.name, self.torch = f"transformers {dtype}", torch
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            args.model, dtype=getattr(torch, dtype)
        ).eval()

    def decode(self, prompts, tokens):
        """Seconds of `tokens` steps, and the tokens of each prompt with the prefill's one."""
        with self.torch.inference_mode():
            out = self.model(self.torch.tensor(prompts), use_cache=True, logits_to_keep=1)
            drawn = [out.logits[:, -1].argmax(-1, keepdim=True)]
            begin = time.perf_counter()
            for _ in range(tokens):
                out = self.model(drawn[-1], past_key_values=out.past_key_values, use_cache=True)
                drawn.append(out.logits[:, -1].argmax(-1, keepdim=True))
            return time.perf_counter() - begin, self.torch.cat(drawn, 1).tolist()


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
        for repeat in range(args.repeats):
            for batch in args.batch:
                draw = random.Random(1000 * repeat + batch)
                length = args.context - args.tokens // 2
                prompts = [draw.choices(range(vocabulary), k=length) for _ in range(batch)]
                drawn = {}
                for system in systems:
                    print(f"repeat {repeat + 1}, batch {batch}, {system.name}", file=sys.stderr)
                    seconds, drawn[system.name] = system.decode(prompts, args.tokens)
                    rates.setdefault((batch, system.name), []).append(
                        batch * args.tokens / max(seconds, 1e-9)
                    )
                    load.append(os.getloadavg()[0])
                for name, tokens in drawn.items():
                    agreed.setdefault((batch, name), []).append(
                        same(tokens, drawn["transformers float32"])
                    )

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
            r, a = rates[batch, system.name], agreed[batch, system.name]
            median = statistics.median(r)
            print(
                f"| {batch} | {system.name} | {median:.1f} ({min(r):.1f} to {max(r):.1f}) "
                f"| {ours / median:.2f} | {100 * statistics.mean(a):.1f}% |"
            )


if __name__ == "__main__":
    main()

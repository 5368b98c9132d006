#!/usr/bin/env python3
"""GRPO on every parameter of a Hugging Face model: plain PyTorch, with rollcast for the rollouts.

    mpirun --bind-to none -np 1 python trainer_bridge/python/train_grpo.py -c configs/demo.toml : \\
           -np 1 build/release/rollcast worker -c configs/demo.toml

Model, prompts, scorer, group size and sampling are those of the configuration; the trainer's own
settings are below. Trainer and ranks may share a GPU, or have none. Each update is one line here and
one in --output (JSONL): the mean reward; how far the trainer's log-probabilities of the sampled tokens
are from those that the ranks recorded (mean |difference|, and the k3 estimate of the KL divergence of
the two policies); completion tokens a second over the whole update; and how long publishing took.
Trajectory (prompt_id, group_id, logprob, ...) and PaddedBatch are described in rollcast/trajectory.py.
"""

import argparse
import json
import math
import random
import sys
import time

import rollcast
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging


def parse_arguments():
    parser = argparse.ArgumentParser(description="GRPO beside rollcast ranks")
    parser.add_argument("-c", "--config", required=True, help="TOML file, the same as the ranks'")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="as the ranks were given it")
    parser.add_argument("--updates", type=int, default=30)
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument("--weight-decay", type=float, default=0.0)
    parser.add_argument("--clip", type=float, default=0.2, help="the ratio stays in [1 - clip, 1 + clip]")
    parser.add_argument("--max-grad-norm", type=float, default=1.0)
    parser.add_argument("--micro-batch", type=int, default=8, help="completions of one backward pass")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", default="train_grpo.jsonl", help="JSONL file, written anew")
    arguments = parser.parse_args()
    if arguments.output == "-":
        parser.error("--output -: the standard output has the table; name a file (./- is one, too)")
    return arguments


def read_prompts(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def batches(prompts, size, seed):
    """Batches for ever, each epoch in another order. No prompt is twice in a batch: its completions
    would be the same, since their seeds follow from the prompt's id."""
    if len(prompts) < size:
        raise SystemExit(f"{len(prompts)} prompts, and an update takes {size}")
    order = random.Random(seed)
    while True:
        epoch = order.sample(prompts, len(prompts))
        for begin in range(0, len(epoch) - size + 1, size):
            yield epoch[begin:begin + size]


def advantages(batch):
    """[B] float32: of each reward, within its group."""
    reward, group = batch.reward.double(), batch.group  # float32 sums of huge rewards overflow
    result = torch.empty_like(reward)
    for g in group.unique():
        of_group = group == g
        result[of_group] = (reward[of_group] - reward[of_group].mean()) / (
            reward[of_group].std(correction=0) + 1e-4)
    return result.float()


def log_probabilities(model, ids, attention_mask, temperature):
    """[B, T - 1] float32: of ids[:, 1:], as the ranks compute `logprob`; temperature [B]."""
    logits = model(input_ids=ids, attention_mask=attention_mask, use_cache=False).logits[:, :-1]
    scaled = logits.float() / torch.where(temperature > 0, temperature, 1.0)[:, None, None]
    chosen = scaled.gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)
    return chosen - scaled.logsumexp(-1)


class MasterAdamW:
    """AdamW on float32 copies of the parameters. The model itself computes, in float32, with these
    rounded to the dtype that the ranks hold: the policy that is trained is the one that samples."""

    def __init__(self, model, dtype, learning_rate, weight_decay):
        self.parameters, self.dtype = list(model.parameters()), dtype
        self.masters = [p.detach().clone() for p in self.parameters]
        self.adamw = torch.optim.AdamW(self.masters, lr=learning_rate, betas=(0.9, 0.95),
                                       weight_decay=weight_decay)

    def step(self, max_grad_norm):
        for master, parameter in zip(self.masters, self.parameters):
            master.grad, parameter.grad = parameter.grad, None
        norm = torch.nn.utils.clip_grad_norm_(self.masters, max_grad_norm)
        self.adamw.step()
        with torch.no_grad():
            for master, parameter in zip(self.masters, self.parameters):
                parameter.copy_(master.to(self.dtype))
        return norm


def train_step(model, optimizer, batch, arguments):
    """One optimizer step on the clipped objective. Returns what is printed of it."""
    advantage = advantages(batch).to(arguments.device)
    mask = batch.completion_mask[:, 1:].to(arguments.device)
    tokens = mask.sum()
    loss_sum = difference = k3 = 0.0
    for begin in range(0, len(advantage), arguments.micro_batch):
        rows = slice(begin, begin + arguments.micro_batch)
        ids = batch.input_ids[rows].to(arguments.device)
        attention = batch.attention_mask[rows].to(arguments.device)
        sampled = batch.logprob[rows, 1:].to(arguments.device)
        temperature = batch.temperature[rows].to(arguments.device)
        logprob = log_probabilities(model, ids, attention, temperature)
        # The ranks' own log-probabilities are the old policy: what differs between the two
        # implementations is part of the ratio, and corrected like any other difference.
        change = torch.where(mask[rows], logprob - sampled, 0.0)
        ratio = change.exp()
        clipped = ratio.clamp(1 - arguments.clip, 1 + arguments.clip)
        gain = advantage[rows, None]
        loss = -(torch.minimum(ratio * gain, clipped * gain) * mask[rows]).sum() / tokens
        loss.backward()
        with torch.no_grad():
            loss_sum += loss.item()
            difference += change.abs().sum().item()
            k3 += (ratio - 1 - change).sum().item()
    if not math.isfinite(loss_sum):
        raise RuntimeError(f"the loss is {loss_sum}: these weights are not to be published")
    norm = optimizer.step(arguments.max_grad_norm)
    return {
        "loss": loss_sum,
        "mean_abs_logprob_difference": difference / tokens.item(),
        "k3_kl": k3 / tokens.item(),
        "grad_norm": norm.item(),
    }


def train(client, arguments, log):
    config = client.config
    model = AutoModelForCausalLM.from_pretrained(config["model"]["path"], dtype=torch.float32)
    model.to(arguments.device).train()
    dtype = getattr(torch, client.manifest().tensors[0].dtype)
    optimizer = MasterAdamW(model, dtype, arguments.learning_rate, arguments.weight_decay)
    prompts = batches(read_prompts(config["rollout"]["prompts"]),
                      config["rollout"]["groups_per_update"], config["rollout"]["seed"])
    print("update version reward  mean|dlogp|    k3 KL  tokens/s  sync ms  pause ms", flush=True)
    for update in range(1, arguments.updates + 1):
        begin = time.monotonic()
        rollouts = client.rollout(next(prompts))
        usable = rollouts.completed()
        if not usable:
            raise RuntimeError(f"no completion can be trained on; the first: {rollouts[0].message}")
        rollout_s = time.monotonic() - begin
        batch = usable.padded(arrays="torch")
        stats = train_step(model, optimizer, batch, arguments)
        step_s = time.monotonic() - begin - rollout_s
        report = client.publish(model.state_dict())
        tokens = sum(len(t.completion) for t in rollouts)
        record = {
            "update": update,
            "version": report.version,
            "reward": batch.reward.double().mean().item(),
            **stats,
            "completions": len(usable),
            "left_out": len(rollouts) - len(usable),
            "tokens": tokens,
            "tokens_per_s": tokens / (time.monotonic() - begin),
            "rollout_s": rollout_s,
            "step_s": step_s,
            "sync_ms": 1e3 * report.total_s,
            "pause_ms": 1e3 * report.pause_s,
        }
        log.write(json.dumps(record) + "\n")
        log.flush()
        print(f"{update:6} {record['version']:7} {record['reward']:6.3f} "
              f"{stats['mean_abs_logprob_difference']:12.6f} {stats['k3_kl']:8.1e} "
              f"{record['tokens_per_s']:9.1f} {record['sync_ms']:8.1f} {record['pause_ms']:9.1f}",
              flush=True)


def client_device(arguments):
    """"cuda" is whichever device is the current one."""
    return None if arguments.device == "cuda" else arguments.device


def main():
    arguments = parse_arguments()
    logging.disable_progress_bar()
    with open(arguments.output, "w", encoding="utf-8") as log, \
            rollcast.Client(arguments.config, arguments.set, device=client_device(arguments)) as client:
        train(client, arguments, log)
    return 0


if __name__ == "__main__":
    sys.exit(main())

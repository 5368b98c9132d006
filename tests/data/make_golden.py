"""Makes the tiny checkpoints and rope references beside this file with transformers 5.17 on CPU.

    pip install torch transformers==5.17.* safetensors h5py numpy
    python make_golden.py            # writes golden/NAME/ and rope.json

Each golden/NAME/ is a Hugging Face folder with random weights and golden.h5: prompt_i/ids [T],
prompt_i/logits [T, V] (teacher-forced), prompt_i/greedy_ids [24], prompt_i/greedy_logprobs [24], all
from a float32 forward with eager attention. The folder is read back before it is run, so the
reference is what transformers makes of the files as they are.
"""

import json
import pathlib

import h5py
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

HERE = pathlib.Path(__file__).parent
PROMPT_LENGTHS = (1, 5, 17, 70)
GREEDY = 24
COMMON = dict(
    vocab_size=256, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=512, bos_token_id=1, eos_token_id=2,
    pad_token_id=0, tie_word_embeddings=False)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32, rope_theta=10000.0)

# name: (model_type, config, dtype, write the key layout of transformers 4)
MODELS = {
    "mistral-window16": ("mistral", dict(sliding_window=16), "bfloat16", True),
    "qwen2-window-layers": ("qwen2", dict(sliding_window=24, use_sliding_window=True,
                                          max_window_layers=1), "bfloat16", False),
    "phi3-partial-rotary": ("phi3", dict(partial_rotary_factor=0.5, rms_norm_eps=1e-5), "bfloat16",
                            False),
    "llama-yarn": ("llama", dict(rope_parameters=YARN, max_position_embeddings=128), "bfloat16",
                   True),
    "llama-linear": ("llama", dict(rope_parameters=dict(rope_type="linear", factor=4.0,
                                                        rope_theta=5000.0)), "bfloat16", False),
    "llama-biases": ("llama", dict(attention_bias=True, mlp_bias=True, num_key_value_heads=1),
                     "bfloat16", False),
    "llama-f32": ("llama", dict(hidden_size=48, num_key_value_heads=4, tie_word_embeddings=True),
                  "float32", True),
    "llama-f16": ("llama", dict(tie_word_embeddings=True), "float16", False),
    "qwen3-wide-heads": ("qwen3", dict(head_dim=40, attention_bias=True), "bfloat16", True),
    "smollm3-no-rope": ("smollm3", dict(num_hidden_layers=3, no_rope_layers=[1, 0, 1],
                                        intermediate_size=64, tie_word_embeddings=True),
                        "bfloat16", False),
}

# What decides the frequencies, as a config.json has it.
LLAMA31 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
               original_max_position_embeddings=8192, rope_theta=500000.0)
LONG_YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32768,
                 rope_theta=1000000.0)
ROPES = [
    ("llama", 128, dict(rope_type="default", rope_theta=10000.0)),
    ("llama", 80, dict(rope_type="default", rope_theta=500000.0)),
    ("llama", 128, dict(rope_type="linear", factor=2.5, rope_theta=10000.0)),
    ("llama", 64, dict(rope_type="dynamic", factor=2.0, rope_theta=10000.0)),
    ("llama", 128, LLAMA31),
    ("llama", 64, {**LLAMA31, "factor": 32.0}),
    ("qwen2", 128, LONG_YARN),
    ("qwen2", 128, {**LONG_YARN, "attention_factor": 1.25}),
    ("qwen2", 128, {**LONG_YARN, "mscale": 0.7, "mscale_all_dim": 0.3}),
    ("qwen2", 128, {**LONG_YARN, "mscale": 0.7}),
    ("qwen3", 96, {**LONG_YARN, "beta_fast": 16, "beta_slow": 2, "truncate": False}),
    ("phi3", 96, dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.75)),
]


def fill(model, generator, dtype):
    """Random weights that `dtype` holds exactly, so that a float32 forward is the reference."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if name.endswith("norm.weight"):
                value = 1 + 0.2 * noise
            elif p.dim() == 1:
                value = 0.2 * noise
            else:
                value = noise * 1.2 / p.shape[1] ** 0.5
            p.copy_(value.to(dtype))


def use_v4_keys(path):
    """Renames to the keys that transformers 4 writes."""
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    rope["type"] = rope["rope_type"]
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def make_model(name, seed):
    model_type, changes, dtype, v4 = MODELS[name]
    folder = HERE / "golden" / name
    config = AutoConfig.for_model(model_type, **{**COMMON, **changes})
    generator = torch.Generator().manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    fill(model, generator, getattr(torch, dtype))
    model.save_pretrained(folder)
    if v4:
        use_v4_keys(folder / "config.json")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                 attn_implementation="eager").eval()
    with h5py.File(folder / "golden.h5", "w") as out, torch.no_grad():
        out.attrs["source"] = "transformers float32 eager on CPU"
        for i, length in enumerate(PROMPT_LENGTHS):
            ids = torch.randint(3, config.vocab_size, (1, length), generator=generator)
            group = out.create_group(f"prompt_{i}")
            group["ids"] = ids[0].numpy().astype(np.int32)
            group["logits"] = model(ids).logits[0].numpy().astype(np.float32)
            greedy, logprobs = [], []
            for _ in range(GREEDY):
                last = torch.log_softmax(model(ids).logits[0, -1], dim=-1)
                greedy.append(int(last.argmax()))
                logprobs.append(float(last.max()))
                ids = torch.cat([ids, torch.tensor([[greedy[-1]]])], dim=1)
            group["greedy_ids"] = np.array(greedy, np.int32)
            group["greedy_logprobs"] = np.array(logprobs, np.float32)


def rope_reference(model_type, head_dim, rope):
    config = AutoConfig.for_model(model_type, **{
        **COMMON, "hidden_size": 4 * head_dim, "head_dim": head_dim,
        "max_position_embeddings": 131072, "rope_parameters": dict(rope)})
    if rope["rope_type"] == "default":
        dim = int(head_dim * rope.get("partial_rotary_factor", 1.0))
        inv_freq = 1.0 / rope["rope_theta"] ** (torch.arange(0, dim, 2).float() / dim)
        factor = 1.0
    else:
        inv_freq, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config)
    return dict(model_type=model_type, head_dim=head_dim, rope_parameters=rope,
                inv_freq=[float(x) for x in inv_freq], attention_factor=float(factor))


def main():
    torch.manual_seed(0)
    for seed, name in enumerate(MODELS):
        make_model(name, seed)
    rows = [json.dumps(rope_reference(*row)) for row in ROPES]
    (HERE / "rope.json").write_text("[\n" + ",\n".join(rows) + "\n]\n")


if __name__ == "__main__":
    main()

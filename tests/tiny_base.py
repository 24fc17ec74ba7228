"""Tiny pretrained model with random weights, written as the files that a base is imported from."""

import json
from pathlib import Path

import gguf
import torch
from safetensors.torch import save_file

from niels_gpt.base.family import FAMILIES
from niels_gpt.config import ModelConfig
from niels_gpt.model.gpt import GPT
from niels_gpt.tokenizer.pretrained import byte_alphabet

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Control tokens, bytes, and the results of two merges; the model has unused entries after them.
VOCABULARY = [*CONTROL, *byte_alphabet(), "th", "the"]
MERGES = [("t", "h"), ("th", "e")]
V = len(VOCABULARY) + 3
SHAPE = {"V": V, "T": 64, "C": 16, "L": 2, "H": 4, "d_ff": 24, "dropout": 0.0, "rope_theta": 5000.0}
BLOCK = {"norm": "rms", "bias": False, "activation": "swiglu", "kv_heads": 2}


def tiny_config(family: str = "llama") -> ModelConfig:
    gains = family == "qwen3"
    return ModelConfig(**SHAPE, **BLOCK, qk_norm=gains, qk_gain=gains)


def tiny_model(family: str = "llama", *, seed: int = 3) -> GPT:
    torch.manual_seed(seed)
    model = GPT(tiny_config(family))
    with torch.no_grad():  # norm gains start at 1, which would hide a lost gain
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def write_folder(folder: Path, family: str = "llama", *, seed: int = 3) -> GPT:
    """Write the model in transformers' form; return it."""
    model = tiny_model(family, seed=seed)
    kind = FAMILIES[family]
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(kind.transformers_config(model.cfg)))
    weights = kind.weights_to(model.state_dict(), model.cfg, "transformers")
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
    added = [
        {"id": i, "content": name, "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for i, name in enumerate(CONTROL)
    ]
    bytes_as = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    entries = {entry: i for i, entry in enumerate(VOCABULARY)}
    described = {
        **dict.fromkeys(("truncation", "padding", "normalizer", "post_processor")),
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": bytes_as,
        "decoder": bytes_as,
        "model": {"type": "BPE", "vocab": entries, "merges": MERGES, "byte_fallback": False, "fuse_unk": False},
    }
    (folder / "tokenizer.json").write_text(json.dumps(described))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": TEMPLATE}))
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\nA tiny model.\n")
    (folder / "LICENSE").write_text("Apache License\n")
    return model


def write_gguf(file: Path, family: str = "llama", *, kind: str = "F32", tokenizer: bool = True) -> GPT:
    """Write the model as a GGUF file with float32 or Q8_0 matrices; return it."""
    model = tiny_model(family)
    form = FAMILIES[family]
    writer = gguf.GGUFWriter(str(file), family)
    for key, value in form.gguf_fields(model.cfg).items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        add(f"{family}.{key}", value)
    writer.add_license("mit")
    if tokenizer:
        kinds = [gguf.TokenType.CONTROL] * len(CONTROL) + [gguf.TokenType.NORMAL] * (len(VOCABULARY) - len(CONTROL))
        unused = V - len(VOCABULARY)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list([*VOCABULARY, *(f"[PAD{i}]" for i in range(unused))])
        writer.add_token_types([*kinds, *[gguf.TokenType.UNUSED] * unused])
        writer.add_token_merges([" ".join(pair) for pair in MERGES])
        writer.add_eos_token_id(2)
        writer.add_chat_template(TEMPLATE)
    for name, tensor in form.weights_to(model.state_dict(), model.cfg, "gguf").items():
        values = tensor.detach().float().contiguous().numpy()
        if kind == "Q8_0" and values.ndim == 2 and values.shape[1] % 32 == 0:
            quantized = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(values, quantized), raw_dtype=quantized)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


LINE = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


# SmolLM2's own template.
SMOLLM2_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\n" + LINE + "<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


CHAT = [
    {"role": "user", "content": "Who bakes?"},
    {"role": "assistant", "content": "Niels bakes bread."},
    {"role": "user", "content": "  And\n\nwhen?"},
    {"role": "assistant", "content": "On Sundays, early."},
]

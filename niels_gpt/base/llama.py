"""Llama: also SmolLM2, TinyLlama and others whose config.json has `model_type: llama`."""

from niels_gpt.base.family import Family, gguf_naming

LLAMA = Family("llama", "LlamaForCausalLM", gains=False, gguf=gguf_naming(halves=False))

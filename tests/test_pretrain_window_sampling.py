"""Tests of windows of a sharded corpus: targets shifted by one, ids in the vocabulary, all equally probable."""

import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from niels_gpt.cache.formats import TOKEN_DTYPE
from niels_gpt.cache.pretrain_dataset import PretrainTokenStreamDataset
from niels_gpt.cache.sft_dataset import SFTExampleDataset
from niels_gpt.cache.windows import Places, TokenFile, TokenStore, TokenStream, open_mix, train_files
from niels_gpt.files.atomic import write_json
from niels_gpt.files.checks import Damaged
from niels_gpt.leak.measure import plant
from niels_gpt.leak.passages import cut_passages
from niels_gpt.model.gpt import GPT
from niels_gpt.train.loop import train
from niels_gpt.train.pretraining import PretrainTask
from tests.tiny_training import CONFIG, MODEL
from tests.token_caches import TOK, pretrain, write_parts


def test_windows_are_shifted_and_within_the_vocabulary(tmp_path: Path) -> None:
    dataset = PretrainTokenStreamDataset(str(pretrain(tmp_path / "c") / "train"), T=32, device="cpu")
    x, y = dataset.get_batch(B=64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(y[:, :-1], x[:, 1:])
    assert x.shape == y.shape == (64, 32)
    assert x.dtype == y.dtype == torch.int64
    assert 0 <= int(x.min()) <= int(x.max()) < TOK.vocab_size


def test_the_generator_decides_the_windows(tmp_path: Path) -> None:
    dataset = PretrainTokenStreamDataset(pretrain(tmp_path / "c") / "train", T=16, device="cpu")
    batches = [dataset.get_batch(B=8, generator=torch.Generator().manual_seed(seed))[0] for seed in (1, 1, 2)]
    assert torch.equal(batches[0], batches[1])
    assert not torch.equal(batches[0], batches[2])


def test_every_window_is_equally_likely(tmp_path: Path) -> None:
    np.arange(0, 11, dtype="<u2").tofile(tmp_path / "shard_00000.bin")  # 8 windows of T=3
    np.arange(100, 105, dtype="<u2").tofile(tmp_path / "shard_00001.bin")  # 2
    np.arange(200, 202, dtype="<u2").tofile(tmp_path / "shard_00002.bin")  # none
    dataset = PretrainTokenStreamDataset(tmp_path, T=3, device="cpu")
    x, _ = dataset.get_batch(B=20_000, generator=torch.Generator().manual_seed(0))
    starts, counts = np.unique(x[:, 0].numpy(), return_counts=True)
    assert starts.tolist() == [*range(8), 100, 101]
    assert np.all(np.abs(counts - 2000) < 5 * (2000 * 0.9) ** 0.5)


def test_parts_of_one_slice_are_read_in_the_order_they_were_written(tmp_path: Path) -> None:
    """The cache counts 12 of the 6 + 4 + 4 tokens: the last two of the last part are beyond its budget."""
    for name, first, count in (("part-00000", 0, 6), ("part-00001", 10, 4), ("part-00001-001", 20, 4)):
        (tmp_path / "train").mkdir(exist_ok=True)
        np.arange(first, first + count, dtype="<u2").tofile(tmp_path / f"train/{name}.bin")
    write_json(tmp_path / "meta.json", {"train_tokens": 12})
    dataset = PretrainTokenStreamDataset(tmp_path / "train", T=1, device="cpu")
    x, _ = dataset.get_batch(B=500, generator=torch.Generator().manual_seed(0))
    assert x.unique().tolist() == [0, 1, 2, 3, 4, 10, 11, 12, 20]


def test_a_folder_without_shards_or_too_short_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no shard_\*\.bin"):
        PretrainTokenStreamDataset(tmp_path, T=4, device="cpu")
    np.arange(4, dtype="<u2").tofile(tmp_path / "shard_00000.bin")
    with pytest.raises(ValueError, match="too short"):
        PretrainTokenStreamDataset(tmp_path, T=4, device="cpu")


@pytest.mark.parametrize("data", [b"", b"abc"])
def test_a_damaged_shard_is_refused_by_name(tmp_path: Path, data: bytes) -> None:
    np.arange(40, dtype="<u2").tofile(tmp_path / "shard_00000.bin")
    (tmp_path / "shard_00001.bin").write_bytes(data)
    with pytest.raises(ValueError, match=r"shard_00001\.bin is no token file .*: build it again"):
        PretrainTokenStreamDataset(tmp_path, T=4, device="cpu")


def written(folder: Path, seed: int) -> tuple[list[np.ndarray], list[np.ndarray], list[int]]:
    """Write token files 0.bin, ... and offsets 0.npy, ...; return both, and how many tokens of each file count."""
    dice = np.random.default_rng(seed)
    arrays, documents, tokens = [], [], []
    for i in range(int(dice.integers(1, 5))):
        lengths = dice.integers(1, 9, int(dice.integers(1, 40)))
        arrays.append(dice.integers(0, 60_000, lengths.sum()).astype("<u2"))
        documents.append(np.concatenate(([0], lengths.cumsum()[:-1])))
        tokens.append(len(arrays[-1]) if dice.random() < 0.5 else int(dice.integers(1, len(arrays[-1]) + 1)))
        arrays[-1].tofile(folder / f"{i}.bin")
        np.save(folder / f"{i}.npy", documents[-1])
    return arrays, documents, tokens


@pytest.mark.slow
def test_windows_and_documents_of_files_are_those_of_arrays(tmp_path: Path) -> None:
    """A budget may count only the first tokens of a file, though documents begin behind them."""
    for seed in range(30):
        arrays, documents, tokens = written(tmp_path, seed)
        files = [TokenFile(str(tmp_path / f"{i}.bin"), n) for i, n in enumerate(tokens)]
        opened = TokenStream(files, documents=[tmp_path / f"{i}.npy" for i in range(len(files))])
        plain = TokenStream([array[:n] for array, n in zip(arrays, tokens, strict=True)], documents=documents)
        assert len(opened) == len(plain) == sum(tokens)
        for T in (1, 4, 30):
            numbers = np.random.default_rng(seed).permutation(plain.windows(T))
            assert opened.windows(T) == plain.windows(T)
            for some in (numbers, numbers[:0]) if len(numbers) else ():
                np.testing.assert_array_equal(opened.gather(some, T), plain.gather(some, T))
                np.testing.assert_array_equal(opened.segments(some, T), plain.segments(some, T))


def test_a_file_is_opened_when_a_window_falls_into_it_and_no_sooner(tmp_path: Path) -> None:
    np.arange(20, dtype="<u2").tofile(tmp_path / "there.bin")
    np.save(tmp_path / "there.npy", np.array([0, 12]))
    names = ("absent", "there", "gone")
    stream = TokenStream(
        [TokenFile(str(tmp_path / f"{name}.bin"), 20) for name in names],
        documents=[tmp_path / f"{name}.npy" for name in names],
    )
    assert (len(stream), stream.windows(9)) == (60, 33)
    numbers = np.arange(11, 22)
    np.testing.assert_array_equal(stream.gather(numbers, 9)[:, 0], np.arange(11))
    segments = stream.segments(numbers, 9)
    assert segments is not None
    assert segments[:, -1].tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1]
    for number, name in ((10, "absent"), (22, "gone")):
        with pytest.raises(FileNotFoundError, match=rf"{name}\.bin"):
            stream.gather(np.array([number]), 9)
        with pytest.raises(FileNotFoundError, match=rf"{name}\.npy"):
            stream.segments(np.array([number]), 9)


def test_a_file_that_was_cut_while_it_was_in_use_is_named(tmp_path: Path) -> None:
    """If it were memory-mapped, the process would end without a message."""
    np.arange(40, dtype="<u2").tofile(tmp_path / "a.bin")
    stream = TokenStream([TokenFile.whole(tmp_path / "a.bin")])
    np.arange(8, dtype="<u2").tofile(tmp_path / "a.bin")
    with pytest.raises(Damaged, match=r"a\.bin is shorter than it was when it was checked: build it again"):
        stream.gather(np.array([3]), 9)


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """Limit the number of open files to 256, as `ulimit -n 256` does."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.slow
def test_a_thousand_token_files_train_where_256_may_be_open(tmp_path: Path, few_descriptors: None) -> None:
    length = MODEL.T + 9
    parts = {
        split: [(np.full(length, i % 250), np.arange(0, length, 7)) for i in range(count)]
        for split, count in (("train", 1000), ("val", 20))
    }
    source = write_parts(tmp_path / "wiki", parts)
    write_json(tmp_path / "mix.json", {"vocab_size": MODEL.V, "sources": {"wiki": source}})
    mix = open_mix(tmp_path / "mix.json", places=Places(tmp_path), documents=True)
    cfg = replace(CONFIG, total_steps=2, p_train={"wiki": 1.0}, B=600, eval_steps=1)
    task = PretrainTask(train=mix.train, val=mix.val, cfg=cfg, T=MODEL.T, device="cpu")
    assert len(set(task.batch(0).x[:, 0].tolist())) > 200
    state = train(GPT(replace(MODEL, C=8)), task)
    assert np.isfinite(state.losses).all()
    assert len(state.validations) == 1


@pytest.mark.slow
def test_every_reader_of_documents_takes_1500_parts_where_256_files_may_be_open(
    tmp_path: Path, few_descriptors: None
) -> None:
    """The readers are those of splice, memorize, leak with its canaries, and the tokenizer's report."""
    ids = [np.arange(i, i + 30) % 250 for i in range(1500)]
    parts = [(document, np.array([0, 20])) for document in ids]
    source = {**write_parts(tmp_path / "notes", {"train": parts, "val": parts}), "vocab_size": MODEL.V}
    places = Places(tmp_path)
    train, val = (TokenStore("notes", source, places=places, split=split) for split in ("train", "val"))
    documents = [part for document in ids for part in np.split(document, [20])]
    assert len(train.lengths) == len(val.lengths) == 3000
    read = [train.document(row) for row in range(3000)]  # all are held in memory
    np.testing.assert_array_equal(np.concatenate(read), np.concatenate(documents))
    passages = cut_passages(val, chunk_size=8, prompt_tokens=4)
    assert set(passages.documents.tolist()) == set(range(3000))
    for row, start, tokens in zip(passages.documents, passages.starts, passages.tokens, strict=True):
        wanted = documents[row][start : start + 8]
        np.testing.assert_array_equal(tokens[: len(wanted)], wanted)
    planted = plant(train, [np.array([251, 252])], folder=tmp_path, seed=1, apart=True, dtype=TOKEN_DTYPE)
    assert len(planted) == 1500 * 30 + 2
    held = list(train_files("notes", source, places=places, vocab_size=256))
    np.testing.assert_array_equal(np.concatenate([tokens for _, tokens in held]), np.concatenate(ids))


def test_300_chat_sources_are_open_where_256_files_may_be(tmp_path: Path, few_descriptors: None) -> None:
    ids = np.array([257, 5, 259, 258, 7, 259], dtype="<u2")
    for i in range(300):
        (ids + np.array([0, 0, 0, 0, i % 200, 0])).astype("<u2").tofile(tmp_path / f"{i}.bin")
    np.save(tmp_path / "idx.npy", np.array([0]))
    opened = [
        SFTExampleDataset(tmp_path / f"{i}.bin", tmp_path / "idx.npy", T=8, device="cpu", eot_id=259, asst_id=258)
        for i in range(300)
    ]
    answers = [chats.examples(np.array([0]))[2][0, 3].item() for chats in opened]
    assert answers == [7 + i % 200 for i in range(300)]

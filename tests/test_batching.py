"""Tests of batch sampling: the specified batches to the bit, the range of windows, and invalid arguments."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from niels_gpt import batching, streams
from niels_gpt.batching import _randints, draw_rows, get_batch
from niels_gpt.cache.windows import TokenStream, check_lengths
from niels_gpt.config import TrainConfig
from niels_gpt.train.pretraining import PretrainTask

SOURCES = {
    "wiki": b"abcdefghijklmnopqrstuvwxyz" * 50,
    "roam": b"0123456789" * 200,
    "primer": b"system: x\nuser: y\nassistant: z\n" * 50,
}
P = {"wiki": 0.5, "roam": 0.3, "primer": 0.2}


def seed_loop(sources, *, p, B, T, generator):  # type: ignore[no-untyped-def]
    """Sample a batch row by row, as seed 000's note specifies."""
    names = sorted(sources)
    probabilities = torch.tensor([p[name] for name in names], dtype=torch.float64)
    xs, ys = [], []
    for choice in torch.multinomial(probabilities, B, replacement=True, generator=generator).tolist():
        src = sources[names[choice]]
        i = int(torch.randint(0, len(src) - (T + 1) + 1, (1,), generator=generator))
        chunk = src[i : i + T + 1]
        xs.append(torch.tensor(list(chunk[:-1])))
        ys.append(torch.tensor(list(chunk[1:])))
    return torch.stack(xs), torch.stack(ys)


@pytest.mark.slow
@given(seed=st.integers(0, 2**32), B=st.integers(1, 40), T=st.integers(1, 64))
def test_batches_equal_the_row_by_row_reference_to_the_bit(seed: int, B: int, T: int) -> None:
    g1, g2 = (torch.Generator().manual_seed(seed) for _ in range(2))
    x, y = get_batch(SOURCES, p=P, B=B, T=T, device="cpu", generator=g1)
    expected_x, expected_y = seed_loop(SOURCES, p=P, B=B, T=T, generator=g2)
    assert torch.equal(x, expected_x)
    assert torch.equal(y, expected_y)
    assert torch.equal(g1.get_state(), g2.get_state())


def test_shape_type_range_and_shift() -> None:
    x, y = get_batch(SOURCES, p=P, B=8, T=16, device="cpu", generator=torch.Generator().manual_seed(0))
    assert x.shape == y.shape == (8, 16)
    assert x.dtype == y.dtype == torch.int64
    assert 0 <= x.min() <= x.max() <= 255
    assert torch.equal(y[:, :-1], x[:, 1:])


def test_without_a_generator_the_default_one_is_used() -> None:
    batches = []
    for _ in range(2):
        torch.manual_seed(5)
        batches.append(get_batch(SOURCES, p=P, B=4, T=8, device="cpu")[0])
    assert torch.equal(*batches)


def test_every_window_is_reachable_and_the_ends_are_included() -> None:
    source = {"a": bytes(range(6))}
    starts = {int(row[0]) for row in get_batch(source, p={"a": 1.0}, B=200, T=3, device="cpu")[0]}
    assert starts == {0, 1, 2}


@pytest.mark.parametrize(
    ("p", "T", "sentence"),
    [
        ({**P, "wiki": 0.6}, 16, r"sum to 1\.0, got .*'wiki': 0\.6"),
        ({**P, "wiki": float("nan")}, 16, r"sum to 1\.0, got .* with sum nan"),
        ({**P, "wiki": 0.5 + 2e-6}, 16, r"sum to 1\.0"),
        ({"wiki": 1.5, "roam": -0.7, "primer": 0.2}, 16, ">= 0"),
        ({"wiki": 0.5, "roam": 0.5}, 16, r"without a probability \['primer'\]"),
        ({**P, "extra": 0.0}, 16, r"without a source \['extra'\]"),
        (P, 1560, r"T\+1 = 1561 tokens: \{'primer': 1550, 'wiki': 1300\}$"),
        (P, 1300, r"T\+1 = 1301 tokens: \{'wiki': 1300\}$"),
    ],
)
def test_invalid_arguments_are_refused(p: dict[str, float], T: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        get_batch(SOURCES, p=p, B=2, T=T, device="cpu")


def test_probabilities_may_be_off_by_rounding_and_a_source_just_long_enough() -> None:
    x, _ = get_batch(SOURCES, p={**P, "wiki": 0.5 + 5e-7}, B=2, T=1299, device="cpu")
    assert x.shape == (2, 1299)


def test_bytes_sources_is_one_type_in_both_modules() -> None:
    assert batching.BytesSources is streams.BytesSources
    assert batching.BytesSources == dict[str, bytes]


@pytest.mark.slow
@given(lengths=st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(lambda ls: max(ls) > 5), T=st.integers(1, 5))
def test_windows_over_several_arrays_are_all_of_them_once_and_cross_none(lengths: list[int], T: int) -> None:
    arrays = [np.arange(n, dtype=np.uint16) + 100 * i for i, n in enumerate(lengths)]
    stream = TokenStream(arrays)
    expected = [array[s : s + T + 1] for array in arrays for s in range(len(array) - T)]
    assert stream.windows(T) == len(expected)
    np.testing.assert_array_equal(stream.gather(np.arange(len(expected)), T), np.array(expected))


def test_draw_counts_follow_the_probabilities() -> None:
    draw = draw_rows(SOURCES, p=P, B=20_000, T=8, generator=torch.Generator().manual_seed(1))
    counts = draw.counts()
    assert sum(counts.values()) == 20_000
    for name, p in P.items():
        assert abs(counts[name] / 20_000 - p) < 4 * (p * (1 - p) / 20_000) ** 0.5


def test_all_short_streams_are_listed_at_once() -> None:
    short, fine = TokenStream.of(b"abc"), TokenStream.of(b"abcdefgh")
    with pytest.raises(ValueError, match=r"T\+1 = 5 tokens: wiki train has 3, roam val has 3;"):
        check_lengths({"train": {"wiki": short, "roam": fine}, "val": {"roam": short}}, T=4)


@given(st.lists(st.integers(1, 2**28 + 3), min_size=1, max_size=9), st.integers(0, 2**32))
def test_random_integers_in_bulk_equal_one_call_per_bound(bounds: list[int], seed: int) -> None:
    ours, theirs = (torch.Generator().manual_seed(seed) for _ in range(2))
    drawn = _randints(np.array(bounds), ours).tolist()
    assert drawn == [int(torch.randint(0, bound, (1,), generator=theirs)) for bound in bounds]
    assert torch.equal(ours.get_state(), theirs.get_state())


def epochs_task(seed: int) -> PretrainTask:
    streams = {"a": TokenStream([np.arange(1000), np.arange(1000, 1300)]), "b": TokenStream([np.arange(64)])}
    cfg = TrainConfig(total_steps=1, B=6, seed=seed, p_train={"a": 0.8, "b": 0.2}, p_val={"a": 1.0}, windows="epochs")
    return PretrainTask(train=streams, val=streams, cfg=cfg, T=16, device="cpu")


@pytest.mark.parametrize("seed", range(3))
def test_an_epoch_takes_all_of_a_text_before_any_of_it_again(seed: int) -> None:
    task = epochs_task(seed)
    rows = [(window, ids) for n in range(40) for source, window, ids in task.rows(n) if source == "a"]
    tiles = -(-(task.train["a"].windows(16) - 1) // 16) + 1
    first, second = rows[:tiles], rows[tiles : 2 * tiles]
    assert len(second) == tiles, "two epochs are asked for"
    for epoch in (first, second):
        times = np.bincount(np.concatenate([ids[:16] for _, ids in epoch]), minlength=1300)
        inner = np.r_[16:968, 1032:1268]  # without the ends of the two arrays, which no window crosses
        assert (times[inner] == 1).all()
    windows = [window for window, _ in first]
    assert windows != [window for window, _ in second]
    assert windows != sorted(windows)


def test_a_batch_of_an_epoch_is_the_same_wherever_a_run_begins() -> None:
    whole = epochs_task(3)
    batches = [whole.batch(n).x for n in range(12)]
    assert torch.equal(epochs_task(3).batch(11).x, batches[11])
    assert torch.equal(
        torch.cat([epochs_task(3).batch(7, slice(0, 2)).x, epochs_task(3).batch(7, slice(2, 6)).x]), batches[7]
    )
    assert epochs_task(3)._draw(5).counts() == epochs_task(3)._random_draw(5).counts()

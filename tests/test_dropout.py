"""Tests of dropout: a row's masks depend only on (seed, step, row, dropout site), however the batch is divided."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from niels_gpt.config import ModelConfig, TrainConfig
from niels_gpt.files.ranks import Ranks
from niels_gpt.model.blocks import MLP, Block, CausalSelfAttention, ForwardPass, dropout_mask
from niels_gpt.model.decoder import Decoder
from niels_gpt.model.gpt import GPT
from niels_gpt.rng import set_seed
from niels_gpt.train.step import PlainStep
from niels_gpt.train.task import ALL, Batch, Execution

WET = ModelConfig(V=40, T=24, C=32, L=2, H=2, d_ff=64, dropout=0.3)
CONFIG = TrainConfig(total_steps=4, B=6, seed=3)
KEYS = torch.arange(64) + (1 << 61)
COUNT = 4096


def batch(rows: slice = ALL) -> Batch:
    x = torch.randint(0, WET.V, (CONFIG.B, WET.T), generator=torch.Generator().manual_seed(0))
    own, y = x[rows], x.roll(-1, 1)[rows]
    return Batch.of(own, y, {"a": CONFIG.B}, first=rows.start or 0, targets=x.numel())


def weights_after(*steps: int, execution: Execution | None = None, seed: int = 3) -> torch.Tensor:
    set_seed(1)
    model = GPT(WET)
    step = PlainStep(model, replace(CONFIG, seed=seed), execution or Execution(), state=None)
    for n in steps:
        step(batch(), lr=1e-2, n=n)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("tokens", [1, 2 * WET.T, 5 * WET.T])
def test_micro_batches_do_not_change_what_is_learned(tokens: int) -> None:
    parts = weights_after(0, 1, execution=Execution(micro_batch_tokens=tokens))
    # Equal up to rounding: another mask would move weights by about the learning rate, 0.01.
    torch.testing.assert_close(parts, weights_after(0, 1), rtol=0, atol=1e-4)


def test_steps_and_seeds_have_masks_of_their_own() -> None:
    first = weights_after(0)
    assert torch.equal(first, weights_after(0))
    for other in (weights_after(1), weights_after(0, seed=4)):
        assert (first - other).abs().max() > 1e-3


def test_rows_of_a_batch_have_masks_of_their_own() -> None:
    step = PlainStep(GPT(WET), CONFIG, Execution(), state=None)
    (inputs,) = step._pieces(batch())
    assert len(inputs["row_keys"].unique()) == CONFIG.B


def test_ranks_take_the_masks_of_the_rows_they_work_on() -> None:
    set_seed(1)
    model = GPT(WET)
    whole = PlainStep(model, CONFIG, Execution(), state=None)
    expected = float(whole(batch(), lr=0.0, n=7))
    halves = [batch(Ranks(rank=rank, size=2).rows(CONFIG.B)) for rank in (0, 1)]
    whole._prepare(0.0, 7)
    with torch.no_grad():
        got = sum(float(whole._loss(**inputs) / half.targets) for half in halves for inputs in whole._pieces(half))
    assert got == pytest.approx(expected, rel=1e-5)


def test_the_configured_share_is_dropped_and_the_mean_stays() -> None:
    for p in (0.1, 0.5, 0.9):
        share = dropout_mask(KEYS, place=0, count=COUNT, p=p).float().mean().item()
        assert share == pytest.approx(p, abs=0.005)  # at most nine standard deviations
    h = torch.ones(64, 4, COUNT // 4)
    out = ForwardPass(0.25, KEYS).dropped(h, place=1)
    assert out.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert out.mean().item() == pytest.approx(1.0, abs=0.01)
    assert torch.equal(ForwardPass(0.25, None).dropped(h, place=1), h)


def test_masks_of_rows_places_and_neighbours_are_not_alike() -> None:
    """Two independent masks with p = 0.5 agree in half of their elements."""
    by_place = [dropout_mask(KEYS, place=place, count=COUNT, p=0.5) for place in range(4)]
    for one, other in pairwise(by_place):
        assert (one == other).float().mean().item() == pytest.approx(0.5, abs=0.01)
    assert (by_place[0][1:] == by_place[1][:-1]).float().mean().item() == pytest.approx(0.5, abs=0.01)
    masks = by_place[0]
    spectrum = torch.fft.rfft(1 - 2.0 * masks).abs() / COUNT**0.5
    assert spectrum.max() < 5, "some period stands out"  # the largest of so many is 3.4 on average
    agreement = (masks[:, None] == masks[None]).float().mean(-1)
    agreement.fill_diagonal_(0.5)
    assert (agreement - 0.5).abs().max() < 0.06  # seven standard deviations for 4096 elements
    for shift in (1, 2, 3, 16, 32, 64, 256, 1024):
        assert (masks == masks.roll(shift, 1)).float().mean().item() == pytest.approx(0.5, abs=0.01)
    assert masks.float().mean(0).sub(0.5).abs().max() < 0.5  # no position is dropped in every row, or in none


def test_a_model_by_itself_draws_its_masks_from_torch() -> None:
    model, x = GPT(WET), batch().x
    set_seed(0)
    first = model(x)
    assert not torch.equal(first, model(x))
    set_seed(0)
    assert torch.equal(first, model(x))
    assert torch.equal(model.eval()(x), model(x))


@pytest.mark.parametrize("part", [Block, CausalSelfAttention, MLP])
def test_a_part_of_the_model_called_alone_drops_in_training_and_only_there(part: type[torch.nn.Module]) -> None:
    module, x = part(WET).train(), torch.randn(3, 8, WET.C, generator=torch.Generator().manual_seed(0))
    set_seed(0)
    first = module(x)
    assert not torch.equal(first, module(x))
    set_seed(0)
    shared = ForwardPass(WET.dropout, torch.randint(1 << 62, (3,)))
    assert torch.equal(first, module(x, shared)), "one mask for each row, by torch"
    assert torch.equal(module.eval()(x), module(x))


@pytest.mark.parametrize("part", [Block, CausalSelfAttention, MLP])
def test_a_part_without_dropout_does_not_move_torchs_generator(part: type[torch.nn.Module]) -> None:
    module, x = part(replace(WET, dropout=0.0)).train(), torch.ones(3, 8, WET.C)
    state = torch.get_rng_state()
    assert torch.equal(module(x), module.eval()(x))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_decoder_drops_nothing_whatever_the_mode_of_its_model() -> None:
    model = GPT(WET).eval()
    with torch.inference_mode():
        expected = model(batch().x)
        hidden = Decoder(model.train(), B=CONFIG.B).extend(batch().x, starts=[0] * CONFIG.B)
        torch.testing.assert_close(model.logits(hidden), expected, atol=1e-4, rtol=1e-4)


def test_every_dropout_site_of_a_model_is_used_once() -> None:
    """The sites are the embedding and, in each block, the attention's values, its output, and the MLP's output."""
    model = GPT(replace(WET, L=2, dropout=0.9))
    places: list[int] = []
    real = ForwardPass.dropped

    def noted(self: ForwardPass, h: torch.Tensor, *, place: int, vectors: bool = False) -> torch.Tensor:
        out = real(self, h, place=place, vectors=vectors)
        assert (out == 0).float().mean() > 0.8
        places.append(place)
        return out

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ForwardPass, "dropped", noted)
        model(batch().x)
    assert sorted(places) == list(range(7))


def test_values_of_a_head_are_dropped_as_whole_vectors() -> None:
    heard = ForwardPass(0.5, KEYS).dropped(torch.ones(64, 2, 8, 4), place=0, vectors=True)
    assert heard.sum(-1).unique().tolist() == [0.0, 8.0]
    assert (heard[:, 0, :, 0] != heard[:, 1, :, 0]).any(), "heads have masks of their own"

"""train.document_mask: documents that share a window do not see each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from niels_gpt.config import ModelConfig, TrainConfig
from niels_gpt.document_mask import DocumentMasked, document_segments
from niels_gpt.model.gpt import GPT
from niels_gpt.rng import set_seed
from niels_gpt.train.loop import train
from niels_gpt.train.task import PretrainTask
from niels_gpt.windows import TokenStream

EOT = 19
CFG = ModelConfig(V=20, T=16, C=16, L=2, H=2, d_ff=32, dropout=0.0)


def test_a_document_ends_with_its_own_eot() -> None:
    x = torch.tensor([[1, 2, EOT, 3, EOT, EOT, 4], [EOT, 1, 1, 1, 1, 1, EOT]])
    assert document_segments(x, document_end=EOT).tolist() == [[0, 0, 0, 1, 1, 2, 3], [0, 1, 1, 1, 1, 1, 1]]


def test_a_masked_document_is_predicted_as_if_it_stood_alone() -> None:
    set_seed(0)
    model = GPT(CFG).eval()
    first, second = torch.randint(0, EOT, (1, 6)), torch.randint(0, EOT, (1, 8))
    window = torch.cat((first, torch.tensor([[EOT]]), second), dim=1)
    alone = model(second)
    torch.testing.assert_close(DocumentMasked(model, document_end=EOT)(window)[:, 7:], alone, atol=1e-5, rtol=1e-5)
    assert (model(window)[:, 7:] - alone).abs().max() > 1e-3


def test_training_and_validation_see_one_document_at_a_time() -> None:
    tokens = np.random.default_rng(0).integers(0, EOT, 2000).astype(np.uint16)
    tokens[::7] = EOT
    streams = {"wiki": TokenStream([tokens])}
    cfg = TrainConfig(total_steps=6, warmup_steps=1, B=4, p_train={"wiki": 1.0}, eval_every=3, eval_steps=2)
    plain = PretrainTask(train=streams, val=streams, cfg=cfg, T=CFG.T, device="cpu")
    masked = replace(plain, document_end=EOT)
    assert torch.equal(plain.batch(3).x, masked.batch(3).x)
    runs = []
    for task in (plain, masked):
        set_seed(0)
        runs.append(train(GPT(CFG), task, cfg))
    assert runs[0].losses != runs[1].losses
    set_seed(0)
    model = GPT(CFG).eval()
    x, y = masked.batch(0).x, masked.batch(0).y
    logits = DocumentMasked(model, document_end=EOT)(x)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
    torch.testing.assert_close(runs[1].losses[0], float(expected.detach()), atol=1e-5, rtol=1e-5)
    assert masked.validate(model) != plain.validate(model)

"""Faults in what options make of a model: its settings, blocks, head, loss, decoder and export."""

from __future__ import annotations

from bench.mutants.fault import Fault

_CONFIG = "niels_gpt/config.py"
_BLOCKS = "niels_gpt/model/blocks.py"
_GPT = "niels_gpt/model/gpt.py"
_LOSS = "niels_gpt/model/loss.py"
_KERNEL = "niels_gpt/model/kernels/loss_triton.py"
_DECODER = "niels_gpt/model/decoder.py"

_M = "tests/test_model.py::"
_SECTION = f"{_M}test_a_model_section_gives_heads_by_number_or_by_width"
_STORED = f"{_M}test_a_stored_config_brings_every_option_back"
_NORMS = f"{_M}test_norms_and_biases"
_VALUES = f"{_M}test_a_value_residual_brings_the_first_blocks_values"
_SKIP = f"{_M}test_an_x0_skip_brings_the_embedding"
_FIRST = f"{_M}test_first_weights_of_options"
_SHARES = f"{_M}test_learned_mixes_begin_with_half_of_each_blocks_values_and_with_the_stream_alone"
_DECODED = f"{_M}test_with_every_option_the_decoder_computes_what_the_model_does"
_LOSSES = f"{_M}test_with_every_option_the_loss_is_that_of_the_logits"
_CAPPED = f"{_M}test_no_logit_is_beyond_the_cap"
_ONE_LOSS = "tests/test_step.py::test_head_and_loss_in_one_equal_logits_and_cross_entropy"
_KERNELS = "tests/test_kernels.py"
_UNTIED = "tests/test_talk.py::test_a_head_of_its_own_is_exported_and_opened_again"

FAULTS = (
    # settings
    Fault(
        "heads by number and by width at once",
        _CONFIG,
        "if (H is None) == (head_dim is None):",
        "if H is None and head_dim is None:",
        _SECTION,
    ),
    Fault("heads neither by number nor by width", _CONFIG, "(H is None) == (head_dim is None)", "False", _SECTION),
    Fault("a head's width need not divide C", _CONFIG, "if C % head_dim:", "if False:", _SECTION),
    Fault("as many heads as one is wide", _CONFIG, 'given["H"] = C // head_dim', 'given["H"] = head_dim', _SECTION),
    Fault(
        "options that are off are stored",
        _CONFIG,
        "in MODEL_OPTIONS and getattr(self, field.name) != field.default",
        "in MODEL_OPTIONS",
        f"{_M}test_a_plain_models_config_is_what_it_was_before_there_were_options",
    ),
    Fault("no option is stored", _CONFIG, "**cfg.options, ", "", _STORED),
    # blocks
    Fault("every block has first values of its own", _BLOCKS, "if self.values is None:", "if True:", _VALUES),
    Fault("shares of values exchanged", _BLOCKS, "own, first = self", "first, own = self", _VALUES),
    Fault(
        "a mix of values alone does not happen",
        _BLOCKS,
        "if not (self.cfg.qk_norm or self.cfg.value_residual):",
        "if not self.cfg.qk_norm:",
        _DECODED,
    ),
    Fault(
        "values begin with the first block's", _BLOCKS, "torch.tensor([0.5, 0.5])", "torch.tensor([0.0, 1.0])", _SHARES
    ),
    Fault("RMSNorm in bf16", _BLOCKS, "super().forward(x.float())", "super().forward(x)", _NORMS),
    Fault("RMSNorm without an epsilon", _BLOCKS, "RMSNorm(cfg.C, eps=_EPS)", "RMSNorm(cfg.C, eps=0.0)", _NORMS),
    Fault(
        "norms keep their biases", _BLOCKS, " else LayerNorm(cfg.C, bias=cfg.bias)", " else LayerNorm(cfg.C)", _NORMS
    ),
    Fault(
        "the MLP keeps a bias",
        _BLOCKS,
        "nn.Linear(cfg.d_ff, cfg.C, bias=cfg.bias)",
        "nn.Linear(cfg.d_ff, cfg.C)",
        _NORMS,
    ),
    Fault(
        "qk_norm without a norm",
        _BLOCKS,
        "return F.rms_norm(qk, (self.cfg.D,), eps=_EPS) if self.cfg.qk_norm else qk",
        "return qk",
        f"{_M}test_attention_scores_with_qk_norm_do_not_grow_with_the_weights",
    ),
    Fault(
        "qk_norm of keys and values",
        _BLOCKS,
        "heads.split((2 * self.cfg.H, self.cfg.H), dim=-2)",
        "heads.roll(self.cfg.H, -2).split((2 * self.cfg.H, self.cfg.H), dim=-2)",
        _DECODED,
    ),
    Fault(
        "a kernel takes heads before their norm",
        _BLOCKS,
        "plain = positions is None and not self.cfg.qk_norm",
        "plain = positions is None",
        _KERNELS,
    ),
    Fault(
        "ReLU without its square", _BLOCKS, "F.relu(fc1(x)).square()", "F.relu(fc1(x))", f"{_M}test_the_square_of_relu"
    ),
    Fault("shares of the stream exchanged", _BLOCKS, "stream, embedding = self", "embedding, stream = self", _SKIP),
    Fault("the stream skips nothing", _BLOCKS, "embedding * shortcuts.embedding", "embedding * x", _SKIP),
    Fault("the stream begins halved", _BLOCKS, "torch.tensor([1.0, 0.0])", "torch.tensor([0.5, 0.5])", _SHARES),
    Fault("attention adds something at first", _BLOCKS, "nn.init.zeros_(module.proj.weight)", "pass", _FIRST),
    Fault("an MLP adds something at first", _BLOCKS, "nn.init.zeros_(module.fc2.weight)", "pass", _FIRST),
    # the model
    Fault("every head is tied", _GPT, "if self.cfg.tied:", "if True:", _DECODED),
    Fault("a tied head begins at 0", _GPT, "if not self.cfg.tied:", "if True:", _FIRST),
    Fault("a head of its own begins as drawn", _GPT, "nn.init.zeros_(self.lm_head.weight)", "pass", _FIRST),
    Fault(
        "logits uncapped",
        _GPT,
        "soft_cap(self.lm_head(h).float(), self.cfg.logit_cap)",
        "self.lm_head(h).float()",
        _CAPPED,
    ),
    Fault(
        "training's loss is of uncapped logits",
        _GPT,
        "return summed_loss(h, self.lm_head.weight, y, cap=self.cfg.logit_cap)",
        "return summed_loss(h, self.lm_head.weight, y)",
        _LOSSES,
    ),
    Fault(
        "validation's loss is of uncapped logits",
        _GPT,
        "return token_losses(h, self.lm_head.weight, y, cap=self.cfg.logit_cap)",
        "return token_losses(h, self.lm_head.weight, y)",
        _LOSSES,
    ),
    Fault(
        "blocks after the first have no shortcuts",
        _GPT,
        "positions=positions, shortcuts=shortcuts)",
        "positions=positions)",
        f"{_VALUES} {_SKIP}",
    ),
    # the loss
    Fault("a cap of 1", _LOSS, "cap * torch.tanh(logits / cap)", "torch.tanh(logits / cap)", _CAPPED),
    Fault("a cap has no slope", _LOSS, "grad if slope is None else grad.mul_(slope)", "grad", _ONE_LOSS),
    Fault(
        "a score of tokens forgets the cap",
        _LOSS,
        "[_losses_and_grad_(part @ head.T, targets, cap)",
        "[_losses_and_grad_(part @ head.T, targets, None)",
        _ONE_LOSS,
    ),
    Fault(
        "losses of the first piece alone",
        _LOSS,
        "for part, targets in pairs]).view_as(y)",
        "for part, targets in [next(pairs)]]).expand(y.numel()).view_as(y)",
        _ONE_LOSS,
    ),
    # the loss's kernel
    Fault("a kernel's target is uncapped", _KERNEL, "chosen = cap * _tanh(chosen / cap)", "chosen = chosen", _KERNELS),
    Fault("a kernel's cap has no slope", _KERNEL, "grad *= 1 - bent * bent", "grad *= 1.0", _KERNELS),
    Fault("a long row's cap has no slope", _KERNEL, "cap * bent, 1 - bent * bent", "cap * bent, 1.0", _KERNELS),
    Fault(
        "what lies behind a row counts",
        _KERNEL,
        "tl.sum(tl.where(columns < V, tl.exp(bent * cap - largest), 0.0))",
        "tl.sum(tl.exp(bent * cap - largest))",
        _KERNELS,
    ),
    Fault(
        "what lies behind a long row counts",
        _KERNEL,
        'x = tl.where(here < V, cap * _tanh(x / cap), -float("inf"))',
        "x = cap * _tanh(x / cap)",
        _KERNELS,
    ),
    # the decoder, sizes, exports
    Fault(
        "a decoder skips nothing",
        _DECODER,
        "h, normed = self._block.before_attention(h, added, shortcuts)",
        "h, normed = self._block.ln1(h, added)",
        _DECODED,
    ),
    Fault(
        "a decoder's heads are as projected",
        _DECODER,
        "self._attended(self._adjusted(qkv.float(), shortcuts)",
        "self._attended(qkv.float()",
        _DECODED,
    ),
    Fault(
        "a decoder's blocks share nothing",
        _DECODER,
        "h, added = block(h, added, rows, new, shortcuts)",
        "h, added = block(h, added, rows, new, Shortcuts(h))",
        _DECODED,
    ),
    Fault(
        "a model's size takes its memory",
        "niels_gpt/model/size.py",
        'torch.device("meta")',
        'torch.device("cpu")',
        f"{_M}test_the_size_of_a_configuration_is_that_of_its_model",
    ),
    Fault(
        "an export leaves every head out",
        "niels_gpt/talk/export/plain.py",
        "if talker.model.cfg.tied:",
        "if True:",
        _UNTIED,
    ),
    Fault(
        "an export is opened with its embedding for a head",
        "niels_gpt/talk/talker.py",
        "if model.cfg.tied:",
        "if True:",
        _UNTIED,
    ),
    Fault(
        "a GPT-NeoX of any model",
        "niels_gpt/talk/export/neox.py",
        "if cfg.options:",
        "if False:",
        "tests/test_talk.py::test_what_transformers_cannot_do_is_refused_by_name",
    ),
)

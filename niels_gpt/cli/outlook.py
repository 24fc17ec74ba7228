"""Outlook of a run, what it reads and what its model will write: one answer for `init` and `doctor`, from params.yaml.

Tokens of a text are estimated from its size until cache/mix.json has counted them, as the report does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from niels_gpt.cli.survey import PLAIN, text_bytes
from niels_gpt.config import ModelConfig
from niels_gpt.data.corpus.mix import Exposure, exposures
from niels_gpt.data.text import SUFFIXES
from niels_gpt.files.checks import read_meta
from niels_gpt.model.size import (
    BASE_BYTES_PER_TOKEN,
    BYTES,
    LARGEST_MODEL,
    LARGEST_TEXT,
    SMALLEST_MODEL,
    SMALLEST_TEXT,
    Ability,
    Reading,
    bytes_per_token,
    expected_ability,
    expected_bits_per_byte,
    parameter_count,
)
from niels_gpt.pipeline import layout


@dataclass(frozen=True)
class Outlook:
    """Text that a run trains on, and the loss and ability expected of its model."""

    seen: Mapping[str, Exposure]  # by source of text, if it has any weight and its size is known
    text_bytes: float  # of training text
    parameters: int | None  # None: those of a base that is not imported yet
    bits: float | None  # expected by the scaling law, per byte; None from a base, which the law does not cover
    ability: Ability
    note: str = ""  # on the recipe or on the range of the law
    further: tuple[float, Ability] | None = None  # hours that would do better, and what they would do

    def remedies(self) -> list[str]:
        """Return what would make the model write more than it will."""
        if self.bits is None:
            return ["what it says about your notes may be invented"]
        hours = [f"with --hours {self.further[0]:g}: {self.further[1]}"] if self.further else []
        base = "with a pretrained model: sentences in your style (--from smollm2; `make base` installs it)"
        return [*hours, base] if self.ability != Ability.SENTENCES else []

    @property
    def epochs(self) -> str:
        """Return the epochs over each source as text."""
        return ", ".join(f"{name} {it.epochs:,.2f} of {it.tokens:,.0f} tokens" for name, it in self.seen.items())

    @property
    def loss(self) -> str:
        """Return the expected loss as text; no figure below the range of the law."""
        assert self.bits is not None
        assert self.parameters is not None
        what = f"{self.text_bytes / 1e6:.1f} MB of text and {self.parameters / 1e6:.1f} M parameters"
        if self.text_bytes < SMALLEST_TEXT or self.parameters < SMALLEST_MODEL:
            return f"{what} are too little to predict the final loss"
        return f"{what}, expected loss about {self.bits:.2f} bits per byte on held-out English{self.note}"


def look_ahead(
    params: Mapping[str, Any], *, folder: Path, cfg: ModelConfig | None, sizes: Mapping[str, float] | None = None
) -> Outlook:
    """Return the outlook of a run; `cfg` is None for a base that is not imported yet.

    `sizes` has the bytes of text in each folder of text, where they are known already.
    """
    texts = {name: source for name, source in params["sources"].items() if source["use"] == "text"}
    a_token = _bytes_per_token(params["tokenizer"])
    mix = read_meta(folder / layout.MIX) if (folder / layout.MIX).is_file() else {"sources": {}}
    # Counts of another vocabulary are of an earlier run.
    counted = mix["sources"] if cfg is None or mix.get("vocab_size", cfg.V) == cfg.V else {}
    tokens = {
        name: counted[name]["train"]["tokens"]
        if name in counted
        else (trained_bytes(source, folder, a_token, size=(sizes or {}).get(name)) or 0.0) / a_token
        for name, source in texts.items()
    }
    steps = params["train"]["total_steps"]
    seen = exposures(params["p_train"], tokens, drawn=steps * params["train"]["B"] * params["model"]["T"])
    # Text of unknown size is taken to be read once.
    in_epochs = params["train"]["windows"] == "epochs"
    readings = [
        Reading((it.tokens or it.drawn) * a_token, it.drawn * a_token, in_epochs) for it in seen.values() if it.drawn
    ]
    size, parameters = sum(reading.size for reading in readings), parameter_count(cfg) if cfg else None
    bits, note, ability = None, "", Ability.SENTENCES
    if params["base"]["from"] is None and parameters is not None:
        bits = expected_bits_per_byte(parameters, readings, steps=steps)
        ability = expected_ability(parameters, readings, steps=steps)
        note = " with preset v2's recipe, higher with this one" if params["train"]["optimizer"] != "muon" else ""
        if size > LARGEST_TEXT or parameters > LARGEST_MODEL:
            note += " (extrapolated: no run of this size was measured)"
    return Outlook({name: it for name, it in seen.items() if it.epochs}, size, parameters, bits, ability, note)


_LONGER = (0.25, 0.5, 1, 2, 4, 8, 24, 72, 240)  # hours to try


def look_further(ahead: Outlook, ability_in: Callable[[float], Ability], *, hours: float) -> Outlook:
    """Return the outlook with the fewest hours, of those worth trying, that do better than `hours`."""
    better = list(Ability)[list(Ability).index(ahead.ability) + 1 :]
    tried = ((more, ability_in(more)) for more in _LONGER if better and more > hours)
    return replace(ahead, further=next((found for found in tried if found[1] in better), None))


def _bytes_per_token(tokenizer: Mapping[str, Any]) -> float:
    return BASE_BYTES_PER_TOKEN if tokenizer["kind"] == "hf" else bytes_per_token(tokenizer.get("vocab_size", BYTES))


def trained_bytes(
    source: Mapping[str, Any], folder: Path, a_token: float, *, size: float | None = None
) -> float | None:
    """Return the bytes of a source's training text as far as known before it is loaded; None if unknown."""
    budget, load = source["budget"]["max_train_tokens"], source["load"]
    limits = [budget * a_token] if budget is not None else []
    if load.get("dataset") is None:
        path = folder / source["input"]
        try:
            if size is None and load["kind"] == "text" and path.is_dir():
                size = text_bytes(str(path), PLAIN if load.get("glob") else SUFFIXES)
        except (ValueError, OSError):  # a file that cannot be read, which the checks of inputs name
            pass
        size = size_on_disk(path) if size is None else size
        limits.append(size * (1 - (load.get("held_out_tail") or source["split"].get("val_frac", 0.0))))
    return min(limits, default=None)


def size_on_disk(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder; 0 if there is none."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size if path.is_file() else 0

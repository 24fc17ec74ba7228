"""History of a finished run: losses, validations, samples, sampled rows. No times: equal runs give equal bytes."""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from niels_gpt.config import TrainConfig
from niels_gpt.files.atomic import write_text
from niels_gpt.files.checks import Damaged

if TYPE_CHECKING:  # reading a history does not need the training code
    from niels_gpt.train.state import RunState


@dataclass(frozen=True)
class History:
    """Record of a run that metrics and learning curves are computed from."""

    cfg: TrainConfig
    T: int  # tokens per row
    parameters: int
    losses: list[float]  # one per step, nats/token
    validations: list[dict[str, float]]
    best_val_loss: float | None
    best_step: int | None
    drawn_rows: dict[str, int]
    samples: list[dict[str, Any]]  # taken at some validations: step, length of the prompt, ids

    @classmethod
    def of(cls, run: "RunState", cfg: TrainConfig, *, T: int, parameters: int) -> "History":
        """Return the history of a run from its final state."""
        record = {field.name: vars(run)[field.name] for field in fields(cls) if field.name in vars(run)}
        return cls(cfg=cfg, T=T, parameters=parameters, **record)

    def write(self, path: Path) -> None:
        """Write JSON that reads back exactly, with the sources in the order of the run."""
        write_text(path, json.dumps(asdict(self)) + "\n")

    @classmethod
    def read(cls, path: Path) -> "History":
        """Read what `write` wrote; raise Damaged if the file is not a history."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            return cls(**{**values, "cfg": TrainConfig(**values["cfg"])})
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise Damaged(path, f"is not the history of a run ({error})") from error

"""Helpers for tests of the logs and pages of runs."""

import json
import re
from typing import Any

# Records all text written on a canvas as data of its chart, since a test cannot read pixels.
NOTE_TEXT = """
const write = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
  requestAnimationFrame(() => { // by then the canvas has its place
    const { dataset } = this.canvas.closest("figure");
    dataset.written = `${dataset.written ?? ""}|${text}|`;
  });
  return write.call(this, text, ...rest);
};
"""


def written(text: str) -> re.Pattern[str]:
    """Return the pattern of this text as NOTE_TEXT records it."""
    return re.compile(rf"\|{re.escape(text)}\|")


REPORT: dict[str, Any] = {
    "total_steps": 400,
    "first_step": 0,
    "lr": 0.004,
    "tokens_per_second": 7000.0,
    "utilisation": 0.35,
    "seconds_left": 300.0,
    "asked": {"wiki": 0.75, "roam": 0.25},
    "drawn_rows": {"wiki": 60, "roam": 40},
    "val_loss": None,
    "validation": None,
}


def line(step: int, *, run: Any = "0123456789", **more: Any) -> bytes:
    told = {"run": run, "time": 1000.0 + step, "step": step, "tokens": step * 64, "loss": 4.0, "sample": ""}
    return json.dumps({**REPORT, **told, **more}).encode() + b"\n"

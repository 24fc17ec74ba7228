"""The engine that the parameters name, for stages that work on a source part by part."""

from __future__ import annotations

import os

from niels_gpt.engine.engine import Engine
from niels_gpt.engine.local import LocalEngine
from niels_gpt.pipeline.params import Runtime


def open_engine(runtime: Runtime) -> Engine:
    if runtime.engine == "ray":
        from niels_gpt.engine.cluster import RayEngine

        return RayEngine(address=runtime.ray_address, workers=runtime.workers)
    return LocalEngine(workers=runtime.workers or os.cpu_count() or 1)

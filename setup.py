"""Copy the files that make a folder a project into the wheel, for `niels-gpt new`. All else is in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

PROJECT = (".dvc", ".dvcignore", ".gitignore", "data", "dvc.yaml", "params.yaml", "presets")


class BuildWithProject(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:  # an editable installation finds them in the clone
            return
        target = Path(self.build_lib, "niels_gpt", "project")
        shutil.rmtree(target, ignore_errors=True)
        for name in PROJECT:
            if Path(name).is_dir():
                shutil.copytree(name, target / name, ignore=shutil.ignore_patterns("tmp", "cache", "*.local"))
            else:
                target.mkdir(parents=True, exist_ok=True)
                shutil.copy2(name, target / name)


setup(cmdclass={"build_py": BuildWithProject})

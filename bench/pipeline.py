"""Cost of DVC, when nothing has changed and as part of a run. After `make run`: python -m bench.pipeline"""

import os
import shutil
import subprocess
import sys
import tempfile

from bench.rounds import median_ratio, medians, print_result, seconds_in_turns

# Stages with little work of their own, in which DVC takes most of the time.
STAGES = ["load@roam", "split@roam", "tokenize@roam"]


def main() -> None:
    def repro() -> None:
        done = subprocess.run(["dvc", "repro"], capture_output=True, text=True, check=True)
        if "Running stage" in done.stdout:
            sys.exit("something was out of date and has now run: call this again to measure a repro with nothing to do")

    def start_python() -> None:
        subprocess.run([sys.executable, "-c", "import dvc.repo"], check=True)

    idle = seconds_in_turns({"dvc repro": repro, "python, import dvc.repo": start_python}, rounds=5, calls=1)
    print_result("a `dvc repro` with nothing to do", medians(idle), unit="s")

    with tempfile.TemporaryDirectory() as folder:
        root = os.path.join(folder, "project")
        shutil.copytree(".", root, symlinks=True, ignore=shutil.ignore_patterns(".venv", ".git", ".*_cache", "logs"))
        subprocess.run(["git", "init", "-q"], cwd=root, check=True)

        def through_dvc() -> None:
            command = ["dvc", "repro", "--single-item", "--force", "--no-run-cache", *STAGES]
            subprocess.run(command, cwd=root, capture_output=True, check=True)

        def by_themselves() -> None:
            for stage in STAGES:
                command = [sys.executable, "-m", f"stages.{stage.partition('@')[0]}"]
                environment = {**os.environ, "DVC_STAGE": stage}
                subprocess.run(command, cwd=root, env=environment, capture_output=True, check=True)

        seconds = seconds_in_turns({"through DVC": through_dvc, "by themselves": by_themselves}, rounds=3, calls=1)
    share = 1 - median_ratio(seconds["by themselves"], seconds["through DVC"])
    print_result(f"{len(STAGES)} stages of the sample, run again", medians(seconds), unit="s", share=share)


if __name__ == "__main__":
    main()

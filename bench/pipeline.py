"""What DVC costs when there is nothing to do. Run after `make run`: python -m bench.pipeline"""

from __future__ import annotations

import subprocess
import sys

from bench.rounds import print_result, seconds_in_turns


def main() -> None:
    def repro() -> None:
        done = subprocess.run(["dvc", "repro"], capture_output=True, text=True, check=True)
        if "Running stage" in done.stdout:
            sys.exit("something was out of date and has now run: call this again to measure a repro with nothing to do")

    def start_python() -> None:
        subprocess.run([sys.executable, "-c", "import dvc.repo"], check=True)

    seconds = seconds_in_turns({"dvc repro": repro, "python, import dvc.repo": start_python}, rounds=5, calls=1)
    print_result("a `dvc repro` with nothing to do", seconds, unit="s")


if __name__ == "__main__":
    main()

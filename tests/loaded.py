"""The tests on a busy machine: several concurrent runs, each with its own order and thread switching.

    python -m tests.loaded [--runs 5] [--at-once 5] [--jobs 2] [--seed N] [-- ARGUMENTS OF PYTEST]

Prints the settings and the result of each run. The runs' output is in ``out/loaded``.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import SEED_VARIABLE, SWITCH_VARIABLE

OUT = Path("out/loaded")
SWITCH_S = (0.00001, 0.005, 0.1)  # fast, Python's default, slow


@dataclass(frozen=True)
class Run:
    """One run of all tests."""

    seed: int
    switch_s: float
    jobs: int
    arguments: Sequence[str]

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that repeat the run."""
        return {SEED_VARIABLE: str(self.seed), SWITCH_VARIABLE: str(self.switch_s)}

    def do(self) -> bool:
        """Run the tests and print the result. Return True if all tests passed."""
        log = OUT / f"{self.seed}.log"
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", str(self.jobs)]
        began_s, load = time.monotonic(), os.getloadavg()[0]
        with log.open("w") as output:
            status = subprocess.run(
                [*command, "--dist", "loadfile", *self.arguments],
                env={**os.environ, **self.variables},
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode
        load = max(load, os.getloadavg()[0])
        *_, last = log.read_text().splitlines() or [""]
        memory = [line for line in log.read_text().splitlines() if line.startswith("most memory: ")]
        settings = " ".join(f"{name}={value}" for name, value in self.variables.items())
        taken_s = time.monotonic() - began_s
        print(
            f"{settings} load {load:.1f}: {last.strip('= ')} [{taken_s:.0f} s] {''.join(memory)}", flush=True
        )
        if status:
            print(f"    do it again: {settings} make test ARGS=...; its output: {log}", flush=True)
        return status == 0


def main() -> int:
    """Do all runs. Return 0 if every test passed in each of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--at-once", type=int, default=5, help="runs side by side")
    parser.add_argument("--jobs", type=int, default=2, help="processes of each run")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the first run")
    parser.add_argument("arguments", nargs="*", help="for pytest")
    asked = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    runs = [
        Run(asked.seed + number, SWITCH_S[number % len(SWITCH_S)], asked.jobs, asked.arguments)
        for number in range(asked.runs)
    ]
    with ThreadPoolExecutor(asked.at_once) as pool:
        return 0 if all(list(pool.map(Run.do, runs))) else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""``make test-vllm-sources``: checks the plugin against the source files of releases of vLLM."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.vllm_sources.support.check import check
from tests.vllm_sources.support.download import NEWEST, DownloadError, newest_version, sources
from tests.vllm_sources.support.table import CHECKED

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "build" / "vllm-sources"


def main() -> int:
    """Return 0 if all names were found, 1 if not, 2 if a version can't be downloaded."""
    parser = argparse.ArgumentParser(prog="python -m tests.vllm_sources", description=__doc__)
    parser.add_argument("versions", nargs="*", default=CHECKED, help=f"such as 0.33.0, or {NEWEST}")
    parser.add_argument("--names", action="store_true", help="list the names that were found")
    arguments = parser.parse_args()
    has_findings = False
    for version in arguments.versions:
        try:
            version = newest_version() if version == NEWEST else version
            report = check(version, sources(version, CACHE), ROOT)
        except DownloadError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        print(f"vLLM {version}: {len(report.names)} names found, {len(report.findings)} findings", flush=True)
        for name in sorted(report.absent):
            print(f"  {name} is absent: our code does without", flush=True)
        for line in (*(sorted(report.names) if arguments.names else ()), *report.findings):
            print(f"  {line}", flush=True)
        has_findings |= bool(report.findings)
    return int(has_findings)


if __name__ == "__main__":
    sys.exit(main())

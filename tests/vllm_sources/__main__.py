"""``make test-vllm-sources``: checks the plug-in against the source files of releases of vLLM."""

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
    """Return 0 if everything was found, 1 if not, 2 if a version can't be downloaded."""
    parser = argparse.ArgumentParser(prog="python -m tests.vllm_sources", description=__doc__)
    parser.add_argument("versions", nargs="*", default=CHECKED, help=f"such as 0.33.0, or {NEWEST}")
    has_findings = False
    for version in parser.parse_args().versions:
        try:
            version = newest_version() if version == NEWEST else version
            findings = check(version, sources(version, CACHE), ROOT, CACHE / f"mypy-{version}")
        except DownloadError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        print(f"vLLM {version}: {len(findings)} findings", flush=True)
        for line in findings:
            print(f"  {line}", flush=True)
        has_findings |= bool(findings)
    return int(has_findings)


if __name__ == "__main__":
    sys.exit(main())

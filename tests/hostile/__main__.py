"""Run every attack on a gateway on this machine, and print a line for each."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import httpx

from tests.hostile.bodies import BODIES
from tests.hostile.floods import FLOODS
from tests.hostile.raw_http import RAW
from tests.hostile.target import NotHereError, Target
from tests.hostile.tenants import TENANTS

GROUPS: dict[str, Sequence[Any]] = {"raw": RAW, "tenants": TENANTS, "bodies": BODIES, "floods": FLOODS}


def main(arguments: list[str] | None = None) -> int:
    """Return the number of successful attacks, at most 125, or 2 if there was no gateway to attack."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--url", required=True, help="of a gateway with keys, on a loopback address")
    parser.add_argument("--key", required=True, help="a tenant's")
    parser.add_argument("--other-key", required=True, help="another tenant's")
    parser.add_argument("--only", choices=GROUPS, help="one group of attacks")
    parser.add_argument("--slow", action="store_true", help="those that wait for limits.head_s and body_s")
    args = parser.parse_args(arguments)
    try:
        target = Target(args.url.rstrip("/"), args.key, args.other_key)
        target.learned_by_them()
    except (NotHereError, httpx.HTTPError, ValueError) as error:
        print(f"no attack: {error}", file=sys.stderr)
        return 2
    num_failed = num_run = 0
    for group, attacks in GROUPS.items():
        for attack in attacks if args.only in (None, group) else ():
            if getattr(attack, "is_slow", False) and not args.slow:
                continue
            num_run += 1
            try:
                attack.run(target)
            except (AssertionError, OSError, ValueError, httpx.HTTPError) as error:
                num_failed += 1
                print(f"{group}: {attack.name}: {error or type(error).__name__}")
    print(f"{num_run} attacks, {num_failed} succeeded")
    return min(num_failed, 125)


if __name__ == "__main__":
    sys.exit(main())

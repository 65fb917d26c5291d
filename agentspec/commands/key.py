"""``agentspec key``: makes a new API key and prints its entry for the configuration."""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Mapping
from hashlib import sha256

from agentspec.commands import option_types
from agentspec.stages import DEFAULT_TENANT, check_tenant

PREFIX = "sk-agentspec-"
LIMITS = ("requests_per_minute", "max_concurrent")
DESCRIPTION = """\
Make an API key. The key is shown only now: give it to its user. The configuration holds its SHA-256,
from which the key can't be derived.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``agentspec key``."""
    parser.description = DESCRIPTION
    parser.set_defaults(run=run_key)
    parser.add_argument(
        "--tenant", default=DEFAULT_TENANT, help="tenant that the key belongs to (%(default)s)"
    )
    for limit in LIMITS:
        flag = "--" + limit.replace("_", "-")
        parser.add_argument(flag, type=option_types.count, metavar="N", help="(default: no limit)")
    parser.add_argument("--admin", action="store_true", help="the operator's instead of a tenant's")


def run_key(args: argparse.Namespace) -> int:
    """Run ``agentspec key``: the key on standard output, the rest on standard error."""
    check_tenant(args.tenant)
    key, digest = new_key()
    print(key, flush=True)
    print("\n# for agentspec.yaml:", file=sys.stderr)
    limits = {name: getattr(args, name) for name in LIMITS}
    print(
        f"admin_key_sha256: {digest}" if args.admin else _entry(args.tenant, limits, digest), file=sys.stderr
    )
    return 0


def new_key() -> tuple[str, str]:
    """Return a new key, and its digest in hexadecimal."""
    key = PREFIX + secrets.token_urlsafe(32)
    return key, sha256(key.encode()).hexdigest()


def _entry(tenant: str, limits: Mapping[str, int | None], digest: str) -> str:
    lines = ["keys:", f"  - sha256: {digest}", f"    tenant: {tenant}"]
    lines += [f"    {name}: {limit}" for name, limit in limits.items() if limit is not None]
    return "\n".join(lines)

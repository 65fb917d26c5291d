"""``agentspec key``: makes a new API key, for the configuration or for the store that gateways share."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import secrets
import sys
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, TypeVar

from agentspec.commands import option_types
from agentspec.errors import ConfigError
from agentspec.extras import needed
from agentspec.stages import DEFAULT_TENANT, check_tenant

if TYPE_CHECKING:
    from agentspec.gateway.sharing.store import SharedStore

PREFIX = "sk-agentspec-"
LIMITS = ("requests_per_minute", "max_concurrent")
DESCRIPTION = """\
Make an API key. The key is shown only now: give it to its user. The configuration, or the store that
gateways share, holds its SHA-256, from which the key can't be derived.
"""
EXAMPLES = """\
examples:
  agentspec key --tenant acme --max-concurrent 8             an entry for agentspec.yaml
  agentspec key --tenant acme --store redis://store:6379/0   accepted by all gateways with sharing.keys
  agentspec key --store redis://store:6379/0 --list
  agentspec key --store redis://store:6379/0 --revoke SHA256
"""
_DIGEST = re.compile("[0-9a-fA-F]{64}")

Answer = TypeVar("Answer")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``agentspec key``."""
    parser.description, parser.epilog = DESCRIPTION, EXAMPLES
    parser.set_defaults(run=run_key)
    parser.add_argument(
        "--tenant", default=DEFAULT_TENANT, help="tenant that the key belongs to (%(default)s)"
    )
    for limit in LIMITS:
        flag = "--" + limit.replace("_", "-")
        parser.add_argument(flag, type=option_types.count, metavar="N", help="(default: no limit)")
    parser.add_argument("--admin", action="store_true", help="the operator's instead of a tenant's")
    parser.add_argument(
        "--store", metavar="URL", help="put it into the Redis server that gateways share (sharing.store)"
    )
    parser.add_argument("--list", action="store_true", help="show the store's keys instead")
    parser.add_argument(
        "--revoke", type=_digest, metavar="SHA256", help="remove this key from the store instead"
    )


def run_key(args: argparse.Namespace) -> int:
    """Run ``agentspec key``: the key on standard output, the rest on standard error."""
    check_tenant(args.tenant)
    if args.store is None and (args.list or args.revoke):
        raise ConfigError("--list and --revoke are for the keys in a store: give --store")
    if args.store is not None and args.admin:
        raise ConfigError("the operator's key is in the configuration of each gateway: leave --store out")
    if args.list:
        _print_keys(_in_store(args.store, lambda store: store.keys()))
    elif args.revoke:
        if not _in_store(args.store, lambda store: store.drop_key(args.revoke)):
            raise ConfigError(f"the store has no key with the SHA-256 {args.revoke}: --list shows them")
        print("revoked: gateways refuse it within a few seconds", file=sys.stderr)
    else:
        _make_key(args)
    return 0


def _make_key(args: argparse.Namespace) -> None:
    key, digest = new_key()
    limits = {name: getattr(args, name) for name in LIMITS}
    if args.store is not None:
        text = json.dumps({"sha256": digest, "tenant": args.tenant, **limits})
        _in_store(args.store, lambda store: store.put_key(digest, text))
    print(key, flush=True)
    if args.store is not None:
        print(f"\nin the store; to revoke it: --revoke {digest}", file=sys.stderr)
        return
    entry = f"admin_key_sha256: {digest}" if args.admin else _entry(args.tenant, limits, digest)
    print(f"\n# for agentspec.yaml:\n{entry}", file=sys.stderr)


def _in_store(url: str, act: Callable[[SharedStore], Awaitable[Answer]]) -> Answer:
    """Do something with the keys in a store. Raises ConfigError, SharingError."""
    with needed("corpus"):
        from agentspec.gateway.sharing.store import SharedStore

    async def work() -> Answer:
        store = SharedStore(url, "command line")
        try:
            return await act(store)
        finally:
            await store.close()

    return asyncio.run(work())


def _print_keys(keys: Mapping[str, str]) -> None:
    for digest, text in sorted(keys.items()):
        try:
            known = dict(json.loads(text))
        except (ValueError, TypeError):
            print(digest, "(malformed: gateways refuse it)")
            continue
        limits = [f"{name}={known[name]}" for name in LIMITS if known.get(name) is not None]
        print(digest, known.get("tenant"), *limits)


def _digest(text: str) -> str:
    if not _DIGEST.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no SHA-256 in hexadecimal: --list shows them")
    return text.lower()


def new_key() -> tuple[str, str]:
    """Return a new key, and its digest in hexadecimal."""
    key = PREFIX + secrets.token_urlsafe(32)
    return key, sha256(key.encode()).hexdigest()


def _entry(tenant: str, limits: Mapping[str, int | None], digest: str) -> str:
    lines = ["keys:", f"  - sha256: {digest}", f"    tenant: {tenant}"]
    lines += [f"    {name}: {limit}" for name, limit in limits.items() if limit is not None]
    return "\n".join(lines)

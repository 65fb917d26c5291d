"""Whether a call or an override fits a function."""

from __future__ import annotations

import ast

from tests.vllm_sources.support.package import Function


def mismatch_of_call(call: ast.Call, function: Function, *, is_bound: bool) -> str | None:
    """Return why the call's arguments don't fit the function; None if they do."""
    positional, names, required = _parameters(function, is_bound=is_bound)
    if any(isinstance(one, ast.Starred) for one in call.args) or any(
        one.arg is None for one in call.keywords
    ):
        return None
    if len(call.args) > len(positional) and function.args.vararg is None:
        return f"takes {len(positional)} arguments by position, not {len(call.args)}"
    given = {*positional[: len(call.args)], *(one.arg for one in call.keywords)}
    for one in call.keywords:
        if one.arg not in names and function.args.kwarg is None:
            return f"takes no argument {one.arg!r}"
    missing = [name for name in required if name not in given]
    return f"needs the argument {missing[0]!r}" if missing else None


def mismatch_of_override(ours: Function, theirs: Function, *, is_bound: bool = True) -> str | None:
    """Return why ``ours`` can't be called wherever ``theirs`` can; None if it can.

    Args:
        is_bound: both have ``self``, which is left out; otherwise only ``ours`` has.
    """
    positional, names, required = _parameters(ours, is_bound=True)
    their_positional, their_names, their_required = _parameters(theirs, is_bound=is_bound)
    takes_any, takes_any_name = ours.args.vararg is not None, ours.args.kwarg is not None
    for index, name in enumerate(their_positional):
        same = index < len(positional) and positional[index] == name
        if not same and not (takes_any or (takes_any_name and name not in their_required)):
            there = positional[index] if index < len(positional) else None
            return f"has {name!r} as its argument {index + 1}, ours has {there!r}"
    for name in their_names:
        if name not in names and not takes_any_name:
            return f"takes an argument {name!r}, ours does not"
    for name in required:
        if name not in their_required:
            return f"does not need the argument {name!r}, ours does"
    return None


def swapped(call: ast.Call, ours: Function) -> str | None:
    """Return which argument stands at the place of another, judged by the names on both sides."""
    positional, _, _ = _parameters(ours, is_bound=True)
    given = [ast.unparse(one).rpartition(".")[2] for one in call.args]
    for index, name in enumerate(given):
        if name in positional and index < len(positional) and positional[index] != name:
            return f"takes {positional[index]!r} as argument {index + 1}, not {name!r}"
    return None


def _parameters(function: Function, *, is_bound: bool) -> tuple[list[str], list[str], list[str]]:
    """Return the names of the positional parameters, of all that have one, and of those without a default."""
    arguments = function.args
    positional = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
    num_defaults = len(arguments.defaults)
    required = positional[: len(positional) - num_defaults]
    keywords = list(zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True))
    required += [one.arg for one, default in keywords if default is None]
    names = [one.arg for one in (*arguments.args, *arguments.kwonlyargs)]
    if is_bound:
        first = positional[0] if positional else None
        positional = positional[1:]
        names = [name for name in names if name != first]
        required = [name for name in required if name != first]
    return positional, names, required

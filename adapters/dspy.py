"""DSPy: tag every call of a program with the path of its module names.

    instrument(workflow="newsroom")
    Article()(topic="bees")

Each module call notes the module's name within its parent module. DSPy has its own HTTP client. Models that
it delegates to LiteLLM use the ``openai`` client.

The stage is the path of attributes from the outermost module inwards: ``Article/draft``. A module that is no
attribute is named by its class or signature. The session is the call of the outermost module.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any
from urllib.parse import urlsplit

from agentspec.adapters.instrumentation import Instrumentation, Undo, framework, replace_method

with framework():
    import dspy
    from dspy._vendor.lm15.transports import StdlibAsyncTransport, StdlibTransport

from agentspec.adapters.allowed_hosts import HOSTS
from agentspec.adapters.caller import Caller, current_caller, made_up_session
from agentspec.adapters.client_requests import log_stranger, log_tags, logger
from agentspec.adapters.headers import lacking
from agentspec.adapters.hooks import below, note_caller
from agentspec.adapters.openai import CLIENT, current_headers

__all__ = ["instrument"]


def _changes() -> Iterator[Undo]:
    for name in ("__call__", "acall"):
        yield note_caller(dspy.Module, name, _module)
    for transport in (StdlibTransport, StdlibAsyncTransport):
        yield replace_method(transport, "stream", _tagging)


instrument = Instrumentation(_changes, beneath=CLIENT).instrument


def _module(module: dspy.Module, *args: Any, **kwargs: Any) -> Caller:
    around = (dspy.settings.caller_modules or [None])[-1]
    if isinstance(around, dspy.ChainOfThought):
        return below()  # it contains a single predictor
    name = _attribute(around, module) or _own_name(module)
    return below(name, session=made_up_session(), by="DSPy's module")


def _attribute(around: dspy.Module | None, module: dspy.Module) -> str | None:
    """Return a module's name in its parent module, in DSPy's notation: ``draft``, ``steps[2]``."""
    attributes: dict[str, Any] = vars(around) if around else {}
    for name, value in attributes.items():
        if value is module:
            return name
        for key, entry in _entries(value):
            if entry is module:
                return f"{name}[{key!r}]"
    return None


def _entries(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return the keys and modules of a list or dictionary of modules; skip others, which may be long."""
    if not isinstance(value, list | tuple | dict):
        return ()
    entries = value.values() if isinstance(value, dict) else value
    if not isinstance(next(iter(entries), None), dspy.Module):
        return ()
    return value.items() if isinstance(value, dict) else enumerate(value)


def _own_name(module: dspy.Module) -> str:
    """Return the name of a user-defined class; for DSPy's own classes, that of the signature."""
    if not type(module).__module__.startswith("dspy."):
        return type(module).__name__
    signature = getattr(module, "signature", None)
    if signature is None:
        predictors = module.predictors()
        signature = predictors[0].signature if predictors else type(module)
    is_written = not hasattr(signature, "signature") or signature.__name__ != "StringSignature"
    return signature.__name__ if is_written else signature.signature


def _tagging(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def stream(transport: Any, request: Any) -> Any:
        given = dict(request.headers)
        ours = lacking(current_headers(), given)
        if HOSTS.allow_url(request.url):
            request.headers += ours.items()
            if ours and logger.isEnabledFor(logging.DEBUG):
                log_tags(_model_in(request.body), {**given, **ours}, current_caller().by)
        elif ours:
            log_stranger(urlsplit(request.url).hostname)
        return original(transport, request)

    return stream


def _model_in(body: bytes) -> Any:
    try:
        asked = json.loads(body)
    except ValueError:
        return None
    return asked.get("model") if isinstance(asked, dict) else None

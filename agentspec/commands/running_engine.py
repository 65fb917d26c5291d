"""An engine that somebody else has started, as ``agentspec serve --engine-url`` takes it."""

from __future__ import annotations

import argparse
import logging
import os

from agentspec.gateway import ProxySettings, ProxyUpstream
from agentspec.gateway.engine_probe import look
from agentspec.vllm_plugin.control import TOKEN_VARIABLE

ENGINE_API_KEY_VARIABLE = "AGENTSPEC_ENGINE_API_KEY"

logger = logging.getLogger("agentspec")


def running(args: argparse.Namespace, *, forwards_authorization: bool) -> tuple[ProxyUpstream, str]:
    """The engine behind ``--engine-url``, and that URL. The log says whether our plugin is in it."""
    settings = ProxySettings(
        url=args.engine_url,
        api_key=os.environ.get(ENGINE_API_KEY_VARIABLE),
        forwards_authorization=forwards_authorization,  # False: it is a key of ours
        sends_xargs=args.xargs,
        control_token=args.control_token or os.environ.get(TOKEN_VARIABLE),
        read_timeout_s=args.engine_timeout_s,
    )
    upstream = ProxyUpstream(settings)
    logger.info("%s", look(settings.root, settings.control_token))
    return upstream, args.engine_url

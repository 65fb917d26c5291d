"""An engine that somebody else has started, as ``agentspec serve --engine-url`` takes it."""

from __future__ import annotations

import argparse
import logging
import os

from agentspec.gateway import Fleet, FleetSettings, TimeoutSettings, UpstreamSettings
from agentspec.gateway.engine_probe import look
from agentspec.vllm_plugin.control import TOKEN_VARIABLE

ENGINE_API_KEY_VARIABLE = "AGENTSPEC_ENGINE_API_KEY"

logger = logging.getLogger("agentspec")


def running(args: argparse.Namespace, *, forwards_authorization: bool) -> tuple[Fleet, str]:
    """The engine behind ``--engine-url``, and that URL. The log says whether our plugin is in it."""
    settings = UpstreamSettings(
        url=args.engine_url,
        api_key=os.environ.get(ENGINE_API_KEY_VARIABLE),
        sends_xargs=args.xargs,
        control_token=args.control_token or os.environ.get(TOKEN_VARIABLE),
    )
    fleet = Fleet(
        FleetSettings(
            upstreams=(settings,),
            timeouts=TimeoutSettings(first_byte_s=args.engine_timeout_s, idle_s=args.engine_timeout_s),
            forwards_authorization=forwards_authorization,  # False: it is a key of ours
        )
    )
    logger.info("%s", look(settings.root, settings.control_token))
    return fleet, args.engine_url

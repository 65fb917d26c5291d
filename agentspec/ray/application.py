"""The Serve application: a gateway deployment in front of an engine deployment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentspec.extras import needed
from agentspec.gateway.settings import Settings
from agentspec.ray.options import ClusterOptions, read_arguments

with needed("ray"):
    from ray import serve
    from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig
    from ray.serve.schema import LoggingConfig

    from agentspec.ray.autoscaling import engines_wanted
    from agentspec.ray.engine_replica import JOIN_S, EngineReplica
    from agentspec.ray.gateway_replica import GatewayReplica

CONSISTENT_HASHING = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
MOST_GATEWAY_REQUESTS = 1000  # in flight in one gateway replica
HEALTH_PERIOD_S = 5.0
QUIET = LoggingConfig(enable_access_log=False)  # the gateway has a line for every call


def app(args: Mapping[str, Any]) -> serve.Application:
    """Return the application for ``serve run agentspec.ray:app`` or for a Serve configuration file.

    Args:
        args: by name: fields of :class:`~agentspec.ray.options.ClusterOptions`, and settings of the engine
            as in ``agentspec.yaml``.

    Raises:
        ConfigError: an argument or a setting is wrong, or is not supported on a cluster.
    """
    cluster, options, settings = read_arguments(args)
    engines = _engines(cluster, settings).bind(options, settings)
    gateway = serve.deployment(serve.ingress()(GatewayReplica)).options(
        name="gateway",
        logging_config=QUIET,
        num_replicas=cluster.gateways,
        max_ongoing_requests=MOST_GATEWAY_REQUESTS,
        graceful_shutdown_timeout_s=cluster.drain_s,
    )
    return gateway.bind(options, settings, engines)


def _engines(cluster: ClusterOptions, settings: Settings) -> serve.Deployment:
    requests = cluster.requests or settings.engine.slots
    return serve.deployment(EngineReplica).options(
        name="engine",
        logging_config=QUIET,
        **_number(cluster, cluster.target_requests or requests / 2),
        max_ongoing_requests=requests,
        max_queued_requests=settings.routing.max_waiting,
        user_config={JOIN_S: cluster.join_s},
        ray_actor_options={"num_cpus": cluster.cpus, "num_gpus": cluster.gpus},
        graceful_shutdown_timeout_s=cluster.drain_s,
        health_check_period_s=HEALTH_PERIOD_S,
        request_router_config=RequestRouterConfig(
            request_router_class=CONSISTENT_HASHING,
            request_router_kwargs={"num_virtual_nodes": 100, "num_fallback_replicas": 2},
        ),
    )


def _number(cluster: ClusterOptions, target_requests: float) -> dict[str, Any]:
    if not cluster.is_scaled:
        return {"num_replicas": cluster.engines}
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=cluster.engines,
            max_replicas=cluster.max_engines,
            target_ongoing_requests=target_requests,
            upscale_delay_s=cluster.scale_up_s,
            downscale_delay_s=cluster.scale_down_s,
            policy=AutoscalingPolicy(policy_function=engines_wanted),
        )
    }

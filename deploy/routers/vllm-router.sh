#!/bin/sh
# vllm-router between the gateway and the engines: calls of one stage, or of one session, stay with one engine.
# Tested with vllm-router 0.1.17 (pip install vllm-router):
#
#     ENGINES="http://engine-1:8000 http://engine-2:8000" vllm-router.sh
#
# Further options are passed on to vllm-router. It reads X-Session-ID and no header of another name, so start the
# gateway with gateway-vllm-router.yaml. It retries a call on the same engine until that engine's circuit breaker opens:
# the threshold must be lower than its five retries.
set -eu

# shellcheck disable=SC2086  # several engines
exec "${VLLM_ROUTER:-vllm-router}" \
    --host "${HOST:-127.0.0.1}" --port "${PORT:-8100}" --prometheus-port "${METRICS_PORT:-29000}" \
    --worker-urls ${ENGINES:?name the engines: ENGINES="http://engine-1:8000 http://engine-2:8000"} \
    --policy consistent_hash \
    --request-timeout-secs 660 \
    --health-check-interval-secs 2 --health-check-timeout-secs 2 \
    --health-failure-threshold 2 --health-success-threshold 1 \
    --cb-failure-threshold 2 --cb-timeout-duration-secs 10 \
    "$@"

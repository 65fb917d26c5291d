#!/bin/sh
# SMG between the gateway and the engines: calls of one stage, or of one session, stay with one engine.
# Tested with SMG 1.13 (pip install smg):
#
#     ENGINES="http://engine-1:8000 http://engine-2:8000" smg.sh
#
# Further options are passed on to SMG. Start the gateway with gateway.yaml.
set -eu

# shellcheck disable=SC2086  # several engines
exec "${SMG:-smg}" launch \
    --host "${HOST:-127.0.0.1}" --port "${PORT:-8100}" --prometheus-port "${METRICS_PORT:-29000}" \
    --backend vllm --worker-urls ${ENGINES:?name the engines: ENGINES="http://engine-1:8000 http://engine-2:8000"} \
    --policy consistent_hashing --routing-key-headers x-agentspec-affinity \
    --request-timeout-secs 660 \
    --health-check-interval-secs 2 --health-check-timeout-secs 2 \
    --health-failure-threshold 2 --health-success-threshold 1 \
    "$@"

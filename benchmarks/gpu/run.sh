#!/usr/bin/env bash
# Step times of vLLM on a GPU, by what drafts: a model of Llama-3.1-8B's shape with random weights.
#
#   benchmarks/gpu/run.sh [--dry-run] [JSON]     default: benchmarks/results/vllm-gpu.json
#
# Needs an H100 or H200 with a driver for CUDA 13, Python 3.11 or newer, a C++ compiler, 40 GB of disk, and
# packages: from pip's index, or from a folder of wheels named by WHEELS. TRACES names a folder of recorded calls;
# with it the proposers are timed, too. --dry-run prints the commands. Some ten minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."

VLLM=0.26.0 # the release for torch 2.11 and CUDA 13
VENV=${VENV:-build/gpu-venv}
MODEL=build/llama-8b-shape

run() {
    printf '+ %s\n' "$*" >&2
    [[ -n ${DRY_RUN:-} ]] || "$@"
}

if [[ ${1:-} == --dry-run ]]; then
    DRY_RUN=1
    shift
fi
json=${1:-benchmarks/results/vllm-gpu.json}
pip=("$VENV/bin/pip" install --quiet)
[[ -z ${WHEELS:-} ]] || pip+=(--no-index --find-links "$WHEELS")
parts=(--only steps)
[[ -z ${TRACES:-} ]] || parts+=(--only propose --traces "$TRACES")

run nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv
[[ -x $VENV/bin/python ]] || run python3 -m venv "$VENV"
run "${pip[@]}" "vllm==$VLLM" nanobind==2.9.2 grpcio-tools cmake ninja wheel setuptools scikit-build-core pybind11
# without its dependencies, which are another torch and another vLLM; its build finds cmake on the path
run env PATH="$PWD/$VENV/bin:$PATH" "${pip[@]}" --no-build-isolation --no-deps arctic-inference==0.3.0
run env PATH="$PWD/$VENV/bin:$PATH" "${pip[@]}" --no-build-isolation --editable '.[bench]'
run mkdir -p "$MODEL"
run cp benchmarks/gpu/config.json agentspec/models/agentspec_sql/tokenizer{,_config}.json "$MODEL"
run "$VENV/bin/python" -m benchmarks vllm --gpu "$MODEL" "${parts[@]}" --json "$json"

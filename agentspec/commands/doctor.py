"""``agentspec doctor``: the checks, in the order of the report."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from agentspec.commands import option_types
from agentspec.commands.gateway_call import KEY_VARIABLE, Gateway
from agentspec.doctor import installation, machine, packages
from agentspec.doctor.finding import Finding, Level
from agentspec.engine.machine_memory import available_memory
from agentspec.vllm_plugin.checks import installed_version, is_for_cpus

DESCRIPTION = """\
Check this installation, a server elsewhere (--engine-url), or a running gateway (--url): its key, its model,
the tags of a call, and drafts. Prints one line per check, with the repair of each problem.
The exit status is 1 if there is a problem. A warning is not a problem.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``agentspec doctor``."""
    parser.description = DESCRIPTION
    parser.set_defaults(run=run_doctor)
    parser.add_argument("--url", metavar="URL", help="check only the gateway that runs there, end to end")
    parser.add_argument(
        "--key", default=os.environ.get(KEY_VARIABLE), help=f"that gateway's; also ${KEY_VARIABLE}"
    )
    parser.add_argument("--model", metavar="MODEL", help="that is to be served")
    parser.add_argument("--host", default="127.0.0.1", help="to be listened on (%(default)s)")
    parser.add_argument("--port", type=option_types.port, default=8000, help="(%(default)s)")
    parser.add_argument(
        "--engine-url", metavar="URL", help="check this server instead of the vLLM installation here"
    )
    parser.add_argument(
        "--control-token", metavar="TOKEN", help="that server's; also $AGENTSPEC_CONTROL_TOKEN"
    )


def run_doctor(args: argparse.Namespace) -> int:
    """Run ``agentspec doctor``."""
    has_problem = False
    for finding in _findings(args):
        print(finding, flush=True)
        has_problem |= finding.level is Level.PROBLEM
    return int(has_problem)


def _findings(args: argparse.Namespace) -> Iterator[Finding]:
    if args.url:
        from agentspec.doctor.servers import check_gateway

        yield from check_gateway(Gateway(args.url, args.key))
        return
    yield packages.check_python()
    yield installation.check_installation()
    yield packages.check_core()
    yield packages.check_cpu_features()
    if args.engine_url:
        yield from _there(args.engine_url, args.control_token)
    else:
        yield from _here(args.model)
    yield machine.check_port(args.host, args.port)
    yield machine.check_files()


def _there(url: str, control_token: str | None) -> Iterator[Finding]:
    from agentspec.doctor.servers import check_engine
    from agentspec.gateway import UpstreamSettings

    settings = UpstreamSettings.at(
        url,
        api_key=os.environ.get("AGENTSPEC_ENGINE_API_KEY"),
        control_token=control_token or os.environ.get("AGENTSPEC_CONTROL_TOKEN"),
    )
    yield from check_engine(settings)


def _here(model: str | None) -> Iterator[Finding]:
    version = installed_version()
    found = packages.check_vllm(version)
    yield found
    if version is not None:
        yield packages.check_torch()
        yield packages.check_companions()
        yield packages.check_plugin()
        yield from _platform()
        if found.level is not Level.PROBLEM:
            yield machine.check_model_runner(os.environ, is_for_cpus=is_for_cpus())
        yield from machine.check_environment(os.environ)
    if version is None or not model:
        yield packages.check_embedded_engine()  # the engine that would start
    if model:
        yield machine.check_checkpoint(model) if version is None else machine.check_model(model)
    yield machine.check_memory(available_memory())


def _platform() -> Iterator[Finding]:
    if packages.distribution() == "vllm":
        yield machine.check_gpu()
        return
    cpuinfo = Path("/proc/cpuinfo")  # Linux only
    yield machine.check_cpu(cpuinfo.read_text() if cpuinfo.exists() else "")
    yield machine.check_openmp(os.environ)
    yield machine.check_kv_cache(os.environ, available_memory())

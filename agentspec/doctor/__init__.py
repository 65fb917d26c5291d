"""``agentspec doctor``: checks of an installation, with reports in plain words.

finding       result of one check
installation  other packages that have the same names
packages      Python, the native core, vLLM and the packages that it must match
machine       processor or GPU, memory, limits, ports, environment variables
cpu_features  instruction sets that the native core was compiled for
engine        a running server behind the gateway
gateway       a running gateway, end to end
"""

"""``agentspec doctor``: checks of an installation, with reports in plain words.

finding       result of one check
installation  other packages that have the same names
packages      Python, the native core, vLLM and the packages that it must match
machine       processor or GPU, memory, limits, ports, environment variables
servers       a running gateway, end to end, and a running server behind one
"""

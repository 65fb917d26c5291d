"""``agentspec doctor``: what is wrong with an installation, in plain words.

finding       what one check found
installation  other packages that have the same names
packages      Python, the native core, vLLM and what it needs to match
machine       processor or GPU, memory, limits, ports, environment variables
engine        a server that somebody has started
"""

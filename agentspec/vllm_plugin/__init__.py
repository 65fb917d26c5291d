"""The forest inside vLLM, through vLLM's own extension points; see docs/vllm.md.

``command`` builds the command line of a vLLM server. In that server, ``worker`` (``--worker-cls``) reports
the start and end of requests to ``proposer`` (the speculative method's ``custom_class``). ``control``
(``--middleware``) answers ``/agentspec/...`` through ``commands`` in the worker. ``import agentspec`` imports
none of these modules.
"""

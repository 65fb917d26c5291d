"""The forest inside vLLM, by vLLM's own extension points; docs/vllm.md.

``command`` writes the flags of a vLLM server. In that server ``worker`` (``--worker-cls``) tells ``proposer``
(the speculative method's ``custom_class``) which requests come and go, ``control`` (``--middleware``) answers
``/agentspec/...`` and asks ``commands`` in the worker. Nothing here is imported by the library.
"""

"""The forest inside vLLM 0.32 and 0.33; docs/vllm.md lists every place where vLLM is patched.

``launch`` builds the command line of a vLLM server, and chooses its model runner. In that server ``worker``
(``--worker-cls``) reports requests and steps to ``planner``, and ``scheduler`` (``--scheduler-cls``) decides
how many draft tokens a step verifies. ``v2`` drafts for the model runner V2, which schedules ahead of the
drafts: for that, names of vLLM's are replaced in its process. ``v1`` drafts for V1 step by step, as the
speculative method ``custom_class``. ``control`` (``--middleware``) answers ``/agentspec/...`` through
``commands`` in the worker. ``import agentspec`` imports none of these modules.
"""

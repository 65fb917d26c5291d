"""vLLM on a GPU: recorded agent calls forced through a model with random weights, by what drafts.

``calls`` prepares recorded calls as token ids. ``run`` runs one of the ``variants`` after the other, each by
``served`` in a process of its own. There ``forcing`` is in vLLM's worker, ``clients`` make the calls and
``meter`` counts. ``pack`` makes parts for a machine without a package index, and ``join`` joins them there.
"""

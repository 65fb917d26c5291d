"""Many more tokens than a budget holds: does memory stay within it, and does any call take long?

Endless outputs (``texts``) of requests that come and go (``traffic``) flow through a forest, of which a scope
(``scopes``) has a budget. Every call is timed (``meter``); ``markers`` show what is forgotten first.
"""

"""The drafter interface, and the compared methods.

drafter       the interface, the forest, a datastore (REST) and prompt look-up
recycling     a table of the tokens that followed each token
stage_trees   the paper's rule without the request's own tree
sam           suffix automata
arctic        arctic-inference's suffix cache
"""

"""The prior of the learned rule: how it is made, and what it does for calls that it has not seen."""

"""The prior of the learned rule: it is made of recorded calls, and measured on sets that it has not seen."""

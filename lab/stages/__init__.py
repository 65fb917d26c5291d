"""``python -m lab stages``: accuracy and cost of stage discovery on calls without tags."""

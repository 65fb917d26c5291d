"""``python -m benchmarks stages``: are stages found that nobody told of, and at what price?"""

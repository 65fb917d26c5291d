"""Attacks on a gateway, one per row: run as tests, or against a running gateway on this machine.

python -m tests.hostile --url http://127.0.0.1:8000 --key KEY --other-key KEY
"""

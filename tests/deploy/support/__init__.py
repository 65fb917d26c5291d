"""Helm, HAProxy and engines for these tests."""

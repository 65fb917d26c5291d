"""A backend of Triton named ``cpu`` that compiles nothing: kernels run in Triton's interpreter.

vLLM's model runner V2 wants Triton with a backend for the platform; for CPUs the package index has none.
"""

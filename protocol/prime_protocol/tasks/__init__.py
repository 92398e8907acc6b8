"""Verifiable tasks: a prompt and a reward, both decided by the task's index. One file per family.

`registry.open_family` opens a set from its spec; `family.py` says what a family can do. Running jobs is the rim's part,
see prime_runtime.sandbox.sandbox.
"""

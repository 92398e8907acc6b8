"""Runs untrusted code in isolated processes.

sandbox is the daemon's side; launcher, isolation and syscalls run in the child with the standard library alone, so
this file must import nothing.
"""

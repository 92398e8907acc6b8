"""Versions of the rules and of the entries: when rules change, old forms of entries, and the lists of version 2. Pure.

The rules themselves are in the modules by subject, beside this folder.
"""

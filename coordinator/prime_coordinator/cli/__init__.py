"""The prime-coordinator command: main.py parses, imports the module of the command and runs it.

Rim: terminal, files, HTTP. No rules live here.
"""

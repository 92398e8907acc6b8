"""The program of a contributor's machine: worker, validator or relay.

The modules of this folder wire the parts together; rules live in agent/ and policy/, and no module here is imported
by another program.
"""

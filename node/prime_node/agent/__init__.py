"""The node's decisions: events and a clock reading in, effects out.

Pure: no sockets, files, clock or randomness of its own; the simulator runs the same code.
"""

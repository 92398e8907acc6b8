"""Weight distribution in virtual time: the nodes' own download decisions over simulated links.

Pure apart from cli. Scheduling rules of the real download must not live here.
"""

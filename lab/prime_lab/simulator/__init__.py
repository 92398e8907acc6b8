"""The coordinator's and the nodes' own decision code in virtual time, from one seed, with loss, crashes and
adversaries. Pure apart from cli: no sockets, no disk, no clock. Protocol rules must not live here; invariants that
are checked from outside do.
"""

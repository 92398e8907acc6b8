"""Checks whether this machine can take part: probes of hardware, engine and network (rim) collect facts; checklist
(pure) turns facts into results with advice. Must not change anything on the machine.
"""

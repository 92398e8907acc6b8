"""What the owner is shown: one report of plain values, alerts and a status model derived from it (pure), and the
local page, metrics and control port (rim). Changes nothing in the node.
"""

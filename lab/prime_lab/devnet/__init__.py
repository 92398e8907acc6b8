"""A whole network on one machine, each participant a real process: plan and summary are pure, the rest is rim
(processes, HTTP, terminal, a local chain). Protocol rules and attacks must not live here.
"""

"""The read-only HTTP side: public files, metrics, and what the explorer's pages show beside the log. Rim.

Nothing here changes the log.
"""

"""The read-only HTTP side: JSON API, public files, metrics, and the adapter for the explorer.

schemas, queries, state_rows and log_rows are pure; the others are rim. Nothing here changes the log.
"""

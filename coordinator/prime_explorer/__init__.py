"""The explorer: the one read model over the log.

An index that is folded from a mirror, queries and views over it, and the HTTP server that shows them as HTML and
JSON. It reads the log's public form only and never imports the coordinator.
"""

"""Serving from behind a router: connections that a private node opens to public ones, which then ask it for shards."""

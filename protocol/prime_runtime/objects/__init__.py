"""The object store: one interface over a local folder or an S3 bucket.

Rim. Which object belongs under which key is decided by the caller.
"""

"""What is verified before an entry or a file counts.

checks.py is pure; uploads.py and checker.py are rim (object store, checking processes). No scheduling decisions here.
"""

"""The coordinator: leases work, judges it through audits, keeps the append-only log and settles value.

core, entry_writer and updates are pure; app.py is the asyncio shell that wires everything.
"""

"""Rim: carries out leases and audits with the engine, and writes rollout files and evidence.

file_checks is pure. When a job starts, and what is sent, is decided in agent/.
"""

"""What the operator does to a coordinator: signed operator endpoints, the terms of runs, backup and restore.

Rim: touches files and the database. Printing and argument parsing live in cli.
"""

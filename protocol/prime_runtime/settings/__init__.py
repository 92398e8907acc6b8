"""Configuration of the programs: flags over environment over a TOML file over defaults. Rim: reads the file.

pydantic checks the values; what it does not do is here: which source wins, where each value came from, nearest known
names for typing errors, and units (`40GB`, `5min`). A program's own settings class lives in that program.
"""

"""Configuration from flags, environment and TOML into one frozen object.

Rim: the only code that reads the environment. Settings of one program live in that program's config module.
"""

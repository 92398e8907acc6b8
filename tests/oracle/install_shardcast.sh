#!/bin/sh
# The public shardcast package in an environment of its own, for bench/shardcast.py to compare with.
set -eu
cd "$(dirname "$0")/../.."
"${PYTHON:-python3}" -m venv .oracle/shardcast
.oracle/shardcast/bin/pip install --quiet --disable-pip-version-check shardcast==0.3.2 blake3==1.0.11
.oracle/shardcast/bin/python -c 'import shardcast'

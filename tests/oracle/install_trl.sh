#!/bin/sh
# TRL in an environment of its own, for bench/trainer.py to compare with. It sees the project's torch and transformers,
# so that both sides run on the very same ones; what it brings along stays here.
set -eu
cd "$(dirname "$0")/../.."
.venv/bin/python -m venv .oracle/trl
.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    > "$(.oracle/trl/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth"
.oracle/trl/bin/pip install --quiet --disable-pip-version-check trl==1.16.0 accelerate==1.15.0 datasets==5.2.0
.oracle/trl/bin/python -c 'import trl'

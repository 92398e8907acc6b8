#!/bin/sh
# Build the public toploc package from source into .oracle/, the reference that our proofs are compared with.
# Its wheel was made for an older torch and does not import; without build isolation the source build uses ours.
set -eu
cd "$(dirname "$0")/../.."
if .oracle/bin/python -c 'import torch, toploc; from toploc.C.csrc import ndd' 2>/dev/null; then
    echo ".oracle/ is ready"
    exit 0
fi
"${PYTHON:-python3}" -m venv .oracle
.oracle/bin/pip install --quiet torch==2.13.0 'numpy>=2.0,<3' ninja wheel setuptools
PATH="$PWD/.oracle/bin:$PATH" MAX_JOBS="${MAX_JOBS:-2}" .oracle/bin/pip install --quiet --no-binary toploc --no-build-isolation --no-deps toploc==0.1.6
.oracle/bin/python -c 'import torch, toploc; from toploc.C.csrc import ndd'
echo ".oracle/ is ready"

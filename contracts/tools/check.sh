#!/bin/sh
# Everything about the contracts, in full: format, lint, 10,000 runs per property, coverage, and the JSON that ships.
# Run by `make contracts`, inside contracts/.
set -eu
PATH="$PWD/node_modules/.bin:$PATH"
forge fmt --check
solhint --disc --max-warnings 0 'src/**/*.sol'
test -x .slither/bin/slither || { python3 -m venv .slither && .slither/bin/pip install --quiet slither-analyzer==0.11.6; }
.slither/bin/slither .
forge build
python3 tools/export.py
FOUNDRY_PROFILE=full forge test
forge coverage --report summary --no-match-coverage '(test|node_modules)' | tee out/coverage.txt | grep '^|'
awk -F'|' '/^\| Total/ { sub("%.*", "", $3); if ($3 + 0 < 95) { print "lines covered:" $3 " %, wanted 95"; exit 1 } }' out/coverage.txt

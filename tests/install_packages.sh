#!/bin/sh
# The Debian packages that tests start real servers from. What is already there is left alone.
set -eu
if command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; then
    exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "the tests need PostgreSQL's server: install the package postgresql, then try again" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -qq -y --no-install-recommends postgresql

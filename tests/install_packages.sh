#!/bin/sh
# What pip cannot bring: `build` before it, `test` before the tests, and so on. What is already there is left alone.
set -eu

need() { # package, what for
    if [ "$(id -u)" -ne 0 ]; then
        echo "$2 needs the Debian package $1: install it, then try again" >&2
        exit 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -qq -y --no-install-recommends "$1"
}

want() { # the same, for a test that is skipped without it
    [ "$(id -u)" -ne 0 ] && echo "$2 is skipped without the Debian package $1" >&2 || need "$1" "$2"
}

packages_of() { # folder with a lock file of npm
    cmp -s "$1/package-lock.json" "$1/node_modules/.installed" && return
    npm ci --prefix "$1" --ignore-scripts --no-audit --no-fund --loglevel=error
    cp "$1/package-lock.json" "$1/node_modules/.installed"
}

case "$1" in
build)
    # libp2p's fastecdsa comes as source only.
    echo '#include <gmp.h>' | cc -E - >/dev/null 2>&1 || need libgmp-dev "the build"
    ;;
chaos)
    command -v tc >/dev/null || want iproute2 "a fault of the network"
    ls /usr/lib/*/faketime/libfaketimeMT.so.1 >/dev/null 2>&1 || want faketime "a fault of the clock"
    command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || want postgresql "its loss"
    packages_of contracts
    ;;
test)
    command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || need postgresql "a test"
    command -v iptables >/dev/null || want iptables "the test behind routers"
    command -v zsh >/dev/null || want zsh "a test of completion"
    command -v fish >/dev/null || want fish "a test of completion"
    command -v tc >/dev/null || want iproute2 "the test on shaped links"
    command -v chromium >/dev/null || want chromium "the explorer's tests in a browser"
    command -v chromedriver >/dev/null || want chromium-driver "the explorer's tests in a browser"
    # js-libp2p, axe-core, forge and anvil, for tests that are skipped without Node.
    if command -v npm >/dev/null; then
        for folder in tests/interop tests/axe contracts; do packages_of $folder; done
    fi
    ;;
contracts)
    packages_of contracts
    ;;
esac

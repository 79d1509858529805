#!/usr/bin/env bash
# Makes this machine ready to build and test: a Rust that is new enough, the packages of
# .ci/packages, the test machine's kernel. Does nothing, and quickly, where all is there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() {
    printf 'make setup: %s\n' "$*" >&2
    exit 1
}

# --- packages ------------------------------------------------------------------------------------

missing_packages() {
    if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
        echo 'make setup: not Debian or Ubuntu; what .ci/packages lists must be there, by whatever name it has here' >&2
        return
    fi
    local installed name others other found
    installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' | sed -n 's/^installed //p')
    while read -r name others; do
        case $name in '' | '#'*) continue ;; esac
        found=no
        for other in $name $others; do
            while read -r package; do
                # shellcheck disable=SC2254 # a pattern
                case $package in $other) found=yes ;; esac
            done <<<"$installed"
        done
        [ $found = yes ] || echo "$name"
    done <.ci/packages
}

mapfile -t missing < <(missing_packages)
if [ ${#missing[@]} -gt 0 ]; then
    echo "installing: ${missing[*]}"
    if [ "$(id -u)" -eq 0 ]; then
        root=()
    elif command -v sudo >/dev/null; then
        root=(sudo)
    else
        die "these packages are missing, and without root or sudo they cannot be installed from here. As root:
  apt-get install --no-install-recommends ${missing[*]}"
    fi
    apt=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q)
    install=("${apt[@]}" install -y --no-install-recommends "${missing[@]}")
    # A fresh machine has no package lists, an old one stale ones.
    "${install[@]}" || { "${apt[@]}" update && "${install[@]}"; } || die "could not install: ${missing[*]}"
fi

# --- Rust ----------------------------------------------------------------------------------------

wanted=$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' Cargo.toml)
how="Get a newer one from https://rustup.rs (it installs for one user, without root)."
command -v cargo >/dev/null || die "cargo is not on the PATH; Rust $wanted or newer is needed. $how"
have=$(cargo --version | sed 's/^cargo \([0-9.]*\).*/\1/') || die "cargo does not run: $(cargo --version 2>&1)"
[ "$(printf '%s\n' "$wanted" "$have" | sort -V | head -n 1)" = "$wanted" ] ||
    die "cargo is $have ($(command -v cargo)); Rust $wanted or newer is needed. $how"

# --- the test machine ----------------------------------------------------------------------------

if command -v apt-get >/dev/null; then
    hw-tests/vm/prepare >/dev/null
fi

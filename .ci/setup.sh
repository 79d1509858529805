#!/usr/bin/env bash
# usage: .ci/setup.sh [LIST...]
#
# Makes this machine ready to build and test: a Rust that is new enough, the packages of
# .ci/packages (and of .ci/packages.LIST), the test machine's kernel. If nothing is missing, it does
# nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() {
    printf 'make setup: %s\n' "$*" >&2
    exit 1
}

lists=(.ci/packages "${@/#/.ci/packages.}")

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
        for other in ${name#\?} $others; do
            while read -r package; do
                # shellcheck disable=SC2254 # a pattern
                case $package in $other) found=yes ;; esac
            done <<<"$installed"
        done
        [ $found = yes ] || echo "$name"
    done < <(cat "${lists[@]}")
}

# known PACKAGE...: the package lists have all of these.
known() {
    apt-cache show --no-all-versions "$@" >/dev/null 2>&1
}

missing=() unknown=()
names=$(missing_packages)
if [ -n "$names" ]; then
    root=()
    [ "$(id -u)" -eq 0 ] || root=(sudo)
    apt=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q)
    may_install=yes
    [ ${#root[@]} -eq 0 ] || command -v sudo >/dev/null || may_install=no
    # A fresh machine has no package lists at all.
    known gcc || [ $may_install = no ] || "${apt[@]}" update || die 'apt-get update does not work here'
    for name in $names; do
        if [ "$name" = "${name#\?}" ] || known "${name#\?}"; then
            missing+=("${name#\?}")
        else
            unknown+=("${name#\?}")
        fi
    done
fi
if [ ${#unknown[@]} -gt 0 ]; then
    echo "make setup: this distribution has no ${unknown[*]}; tests that need one are skipped" >&2
fi
if [ ${#missing[@]} -gt 0 ]; then
    [ $may_install = yes ] ||
        die "these packages are missing, and without root or sudo they cannot be installed from here. As root:
  apt-get install --no-install-recommends ${missing[*]}"
    echo "installing: ${missing[*]}"
    install=("${apt[@]}" install -y --no-install-recommends "${missing[@]}")
    # Old package lists name versions that are gone.
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

# --- commit messages -----------------------------------------------------------------------------

if [ -z "${CI:-}" ] && [ -d .git ] && [ -z "$(git config core.hooksPath || true)" ]; then
    echo 'make setup: to have the subjects of your commits checked: git config core.hooksPath .githooks' >&2
fi

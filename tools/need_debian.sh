#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# need_debian.sh WHAT PACKAGE...  Makes sure that Debian packages are there; WHAT says for what, in the announcement.
# Installs what is missing where it may (root, or sudo without a password), and names it; otherwise prints the one line to
# run and stops with status 1. On a system without dpkg it only says what would be needed. `optional:` before WHAT: never stops.
set -u
what=$1
shift
optional=0
case $what in optional:*) optional=1 what=${what#optional:} ;; esac
if ! command -v dpkg-query >/dev/null 2>&1; then
  echo "[setup] no dpkg here; $what needs the equivalents of the Debian packages: $*"
  exit 0
fi
missing=""
for package in "$@"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q "install ok installed" || missing="$missing $package"
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ]; then as=""; elif sudo -n true 2>/dev/null; then as="sudo -n"; else
  echo "[setup] $what needs:$missing. Run:  sudo apt-get install -y$missing"
  [ $optional = 1 ] && exit 0
  exit 1
fi
echo "[setup] installing for $what:$missing"
log=$(mktemp)
if DEBIAN_FRONTEND=noninteractive $as apt-get install -y -qq --no-install-recommends $missing >"$log" 2>&1 ||
  { $as apt-get update -qq >"$log" 2>&1 && DEBIAN_FRONTEND=noninteractive $as apt-get install -y -qq --no-install-recommends $missing >"$log" 2>&1; }; then
  rm -f "$log"
  exit 0
fi
tail -5 "$log"
rm -f "$log"
echo "[setup] could not install:$missing. Run:  apt-get update && apt-get install -y$missing"
[ $optional = 1 ] && exit 0
exit 1

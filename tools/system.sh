#!/bin/sh
# Installs podman and what it needs, if it is missing and we may: as root on a system with apt.
set -eu
missing=""
command -v podman >/dev/null 2>&1 || missing="$missing podman"
command -v runc >/dev/null 2>&1 || command -v crun >/dev/null 2>&1 || missing="$missing runc"
# On the older control-group layouts crun refuses to start; runc works on all of them.
[ -f /sys/fs/cgroup/cgroup.controllers ] || command -v runc >/dev/null 2>&1 || missing="$missing runc"
command -v mmdebstrap >/dev/null 2>&1 || missing="$missing mmdebstrap"
command -v git >/dev/null 2>&1 || missing="$missing git"
command -v newuidmap >/dev/null 2>&1 || missing="$missing uidmap"
[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing:$missing"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing catatonit >/dev/null
else
    echo "lego needs these, please install them:$missing" >&2
    echo "  on Debian or Ubuntu: sudo apt-get install --no-install-recommends$missing catatonit" >&2
    exit 3
fi

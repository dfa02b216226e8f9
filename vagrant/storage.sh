#!/bin/sh
# storage.sh [DISK]: makes the volume group vg0 on DISK, or on the one disk of this machine that is empty.
#
# What must never happen here: a disk that holds anything overwritten.
set -eu

group=vg0

# Without partitions, signatures, or anything stacked on it.
is_empty() {
	[ "$(lsblk --noheadings --raw --output NAME "$1" | wc -l)" = 1 ] || return 1
	[ -z "$(lsblk --noheadings --raw --output MOUNTPOINT "$1")" ] || return 1
	signatures=$(wipefs --noheadings "$1") || return 1
	[ -z "$signatures" ]
}

empty_disks() {
	lsblk --nodeps --noheadings --raw --paths --output NAME,TYPE,RO | while read -r disk type read_only; do
		if [ "$type" = disk ] && [ "$read_only" = 0 ] && is_empty "$disk"; then
			echo "$disk"
		fi
	done
}

if vgs "$group" >/dev/null 2>&1; then
	echo "storage: $group is there already"
	exit 0
fi

disks=${1:-$(empty_disks)}
# Names of devices, without blanks.
# shellcheck disable=SC2086
set -- $disks
if [ $# != 1 ]; then
	echo "storage: want one empty disk for $group, and there are $#${1:+: $*}: name it: storage.sh /dev/DISK" >&2
	exit 1
fi
if ! is_empty "$1"; then
	echo "storage: $1 is not empty, and nothing is overwritten: wipe it (wipefs --all $1), or name another" >&2
	exit 1
fi
vgcreate --quiet "$group" "$1"

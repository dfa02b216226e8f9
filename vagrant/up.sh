#!/bin/sh
# up.sh NAME: on the controller, waits until it reaches the agent of NAME.
set -eu

[ $# = 1 ] || { echo "usage: up.sh NAME" >&2; exit 2; }
# shellcheck source=/dev/null
. /root/mooring.env

tries=60
until said=$(mooring host show "$1" 2>&1) && echo "$said" | grep -Eq '^UP +yes'; do
	tries=$((tries - 1))
	if [ "$tries" = 0 ]; then
		echo "up: the controller does not reach $1. If the controller was made anew since $1 has joined: vagrant destroy -f $1 &&" \
			"vagrant up $1. It says: $said" >&2
		exit 1
	fi
	sleep 1
done
echo "up: the controller reaches $1"

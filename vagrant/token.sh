#!/bin/sh
# token.sh NAME ROLE: on the controller, prints the line by which NAME joins. Only for a machine that has not joined, or was made
# anew: an older one of that name is revoked.
set -eu

[ $# = 2 ] || { echo "usage: token.sh NAME ROLE" >&2; exit 2; }
if [ ! -r /root/mooring.env ]; then
	echo "token: this machine is no controller yet: vagrant provision controller" >&2
	exit 1
fi
# shellcheck source=/dev/null
. /root/mooring.env
if mooring host show "$1" >/dev/null 2>&1; then
	mooring host revoke "$1" >&2
fi
mooring host token "$1" --role "$2" | grep '^ *mooring-agent join '

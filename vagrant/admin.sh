#!/bin/sh
# On the controller, prints the settings of `mooring` with the admin's token, for operator.sh.
set -eu

if [ ! -r /root/mooring.env ]; then
	echo "admin: this machine is no controller yet: vagrant provision controller" >&2
	exit 1
fi
cat /root/mooring.env

#!/bin/sh
# On a machine that has joined: lets root there do everything at the controller, by the settings of admin.sh, which it reads.
#
# What must never happen here: a token that others than root can read.
set -eu
umask 077

# The authority is that of the join.
sed 's|^export MOORING_CA=.*|export MOORING_CA=/etc/mooring/agent-ca.crt|' >/root/mooring.env.new
if ! grep -q '^export MOORING_TOKEN=.' /root/mooring.env.new; then
	rm /root/mooring.env.new
	echo "operator: no token came: admin.sh prints it on the controller" >&2
	exit 1
fi
mv /root/mooring.env.new /root/mooring.env
if [ -d /etc/sudoers.d ]; then
	echo 'Defaults env_file=/root/mooring.env' >/etc/sudoers.d/mooring
	chmod 0440 /etc/sudoers.d/mooring
fi
echo "operator: root on this machine is an admin: sudo mooring demo"

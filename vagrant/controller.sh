#!/bin/sh
# controller.sh ADDRESS: makes this machine the controller, reached at ADDRESS. Root gets the admin's token, in /root/mooring.env.
#
# What must never happen here: a token that is printed, or that others than root can read.
set -eu
umask 077

[ $# = 1 ] || { echo "usage: controller.sh ADDRESS" >&2; exit 2; }

# It changes nothing that is there, and shows the token once, so that what it said is kept.
mooring-controller init --name "$1" --name "$(hostname)" >>/root/mooring-init
token=$(sed -n "s/^the admin's token, shown this once: //p" /root/mooring-init | tail -n 1)
if [ -z "$token" ]; then
	echo "controller: /root/mooring-init has no token, and it is shown once only: vagrant destroy -f && vagrant up" >&2
	exit 1
fi
cat >/root/mooring.env.new <<END
export MOORING_CONTROLLER=https://$1:8776
export MOORING_CA=/etc/mooring/authority.crt
export MOORING_TOKEN=$token
END
mv /root/mooring.env.new /root/mooring.env

# `sudo mooring …` finds it; the file is read by root, and stays root's.
if [ -d /etc/sudoers.d ]; then
	echo 'Defaults env_file=/root/mooring.env' >/etc/sudoers.d/mooring
	chmod 0440 /etc/sudoers.d/mooring
fi

systemctl start mooring-controller
# shellcheck source=/dev/null
. /root/mooring.env
if ! said=$(mooring host list 2>&1); then
	echo "controller: it runs, and does not answer: $said" >&2
	exit 1
fi
echo "controller: answers at $MOORING_CONTROLLER"

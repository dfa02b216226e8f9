#!/bin/sh
# packages.sh NAME...: installs or upgrades /tmp/NAME.deb, and what they need from Debian's mirror.
set -eu

[ $# -gt 0 ] || { echo "usage: packages.sh NAME..." >&2; exit 2; }
for name; do
	[ -r "/tmp/$name.deb" ] || { echo "packages: /tmp/$name.deb is not there: \`vagrant provision\` brings it" >&2; exit 1; }
	set -- "$@" "/tmp/$name.deb"
	shift
done

install() {
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@"
}

# The lists of a box are old or not there; a second run needs none.
if ! apt-get install -s -qq "$@" >/dev/null 2>&1; then
	apt-get update -qq
fi
install "$@" || {
	echo "packages: once more, with new lists of Debian's mirror"
	apt-get update -qq
	install "$@"
}

#!/bin/sh
# join.sh ADDRESS [PORTAL...]: makes this machine an agent by the line of `mooring host token`, which it reads. The controller
# reaches it at ADDRESS; its targets listen at the PORTALs. A machine that has joined is only looked after: its line may be empty.
set -eu

[ $# -gt 0 ] || { echo "usage: join.sh ADDRESS [PORTAL...] <LINE" >&2; exit 2; }
address=$1
shift
read -r line || [ -n "$line" ] || line=

if [ -e /etc/mooring/agent.toml ]; then
	echo "join: this machine has joined already"
	systemctl start mooring-agent
	exit 0
fi

for portal; do
	set -- "$@" --portal "$portal"
	shift
done
case $line in
"mooring-agent join https://"*" --role storage") set -- "$@" --group vg0 ;;
"mooring-agent join https://"*) ;;
*)
	echo "join: this is no line of \`mooring host token\`: token.sh prints one on the controller" >&2
	exit 1
	;;
esac
# Its words hold neither blanks nor quotes. None is a pattern.
set -f
# shellcheck disable=SC2086
set -- $line --address "$address:7710" "$@"
"$@"

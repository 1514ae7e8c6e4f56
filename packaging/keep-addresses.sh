# shellcheck shell=sh
# Agents that run and listen on all addresses, as earlier releases did by default, continue to: their
# addresses are written down. The installed release is asked, before it is replaced.
keep_addresses() {
	outrider config defaults 2>/dev/null | grep -q '^address = ":15020"' || return 0
	for socket in /run/outrider/outrider.sock /run/outrider/*/outrider.sock; do
		name=${socket#/run/outrider/}
		name=${name%outrider.sock}
		name=${name%/}
		folder=/etc/outrider/${name:+$name.}conf.d
		file=$folder/00-listen-addresses.toml
		if [ ! -S "$socket" ] || [ ! -e "/etc/outrider/${name:-outrider}.toml" ] || [ -e "$file" ]; then
			continue
		fi
		kept=$(timeout 10 outrider --socket "$socket" config show | sed -n \
			-e 's/^\(address = ":15020"\).*/status.\1/p' \
			-e 's/^\(prometheus_address = "0\.0\.0\.0:15090"\).*/telemetry.\1/p')
		[ -n "$kept" ] || continue
		mkdir -p "$folder"
		install -m 0640 -g outrider /dev/null "$file"
		printf '%s\n' "# Written by an upgrade of the package outrider: these were the defaults before, and are on" \
			"# 127.0.0.1 since. 15021 follows status.address. Remove what needs no access from other hosts." \
			"$kept" >"$file"
		echo "outrider: 15020, 15021 and 15090 are on 127.0.0.1 by default from this release on; the addresses of before are kept in $file"
	done
}

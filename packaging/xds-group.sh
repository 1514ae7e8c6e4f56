# shellcheck shell=sh
# Applications with gRPC's xDS client were in Envoy's group, which writes what Envoy writes. They become members of
# outrider-xds, which reaches the xDS socket only.
move_to_xds_group() {
	for member in $(getent group outrider-envoy | cut -d : -f 4 | tr , ' '); do
		case "$member" in outrider | outrider-envoy) continue ;; esac
		if id "$member" >/dev/null 2>&1; then
			echo "m $member outrider-xds" | systemd-sysusers - || continue
			echo "outrider: user $member is in group outrider-envoy, for the xDS socket. That is group outrider-xds from" \
				"this release on: $member is a member now, and the next release closes the socket to outrider-envoy." \
				"Restart what runs as $member, then: gpasswd -d $member outrider-envoy" >&2
		fi
	done
}

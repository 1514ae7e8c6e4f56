package packaging

// oldLayout simulates the runtime directories of releases before
// docs/decisions/0001-runtime-directories.md by drop-ins for the installed units.
const oldLayout = `set -eu
cd /etc/systemd/system
ln -s /dev/null 'run-outrider\x2denvoy.mount'
mkdir -p /etc/tmpfiles.d outrider.service.d outrider@.service.d outrider-envoy.service.d outrider-envoy@.service.d
cat >/etc/tmpfiles.d/outrider.conf <<END
d /run/outrider       0755 outrider       outrider
d /run/outrider/envoy 2750 outrider       outrider-envoy
d /run/outrider-envoy 0750 outrider-envoy outrider-envoy
END
preserve='RuntimeDirectoryPreserve=yes
ReadWritePaths='
cat >outrider.service.d/old.conf <<END
[Service]
RuntimeDirectory=outrider
RuntimeDirectoryMode=0755
$preserve
StateDirectory=
StateDirectory=outrider
END
cat >outrider@.service.d/old.conf <<END
[Service]
RuntimeDirectory=outrider/%i
RuntimeDirectoryMode=0755
$preserve
ExecStartPre=
ExecStartPre=+/bin/sh -c 'echo d /run/outrider/%i/envoy 2750 outrider outrider-envoy | systemd-tmpfiles --create outrider.conf -'
END
cat >outrider-envoy.service.d/old.conf <<END
[Service]
RuntimeDirectory=outrider-envoy
RuntimeDirectoryMode=0750
$preserve
ExecStart=
ExecStart=/usr/libexec/outrider/outrider-keeper
END
cat >outrider-envoy@.service.d/old.conf <<END
[Service]
RuntimeDirectory=outrider-envoy/%i
RuntimeDirectoryMode=0750
$preserve
ExecStart=
ExecStart=/usr/libexec/outrider/outrider-keeper
END
rm -rf /run/outrider /run/outrider-envoy /var/lib/outrider
systemctl daemon-reload
systemd-tmpfiles --create outrider.conf`

// endOldLayout is a script that removes the drop-ins, mount unit and tmpfiles configuration with
// which the old package is simulated.
const endOldLayout = `set -eu
cd /etc/systemd/system
rm -r /etc/tmpfiles.d/outrider.conf 'run-outrider\x2denvoy.mount' outrider*.service.d
`

// whose lists the directories whose owners root must not trust.
const whose = `stat -c '%a %U %G %n' /run/outrider /run/outrider/edge /run/outrider/edge/envoy /run/outrider-envoy /run/outrider-envoy/edge`

func (h *host) hasOldLayout() {
	h.t.Helper()
	h.expect(`755 outrider outrider /run/outrider
755 outrider outrider /run/outrider/edge
2750 outrider outrider-envoy /run/outrider/edge/envoy
750 outrider-envoy outrider-envoy /run/outrider-envoy
750 outrider-envoy outrider-envoy /run/outrider-envoy/edge`, whose)
	h.expect("outrider outrider", "stat -c '%U %G' /var/lib/outrider")
}

// hasLayout checks the directories after an upgrade. No mount must cover the sockets of the running
// keeper.
func (h *host) hasLayout() {
	h.t.Helper()
	h.expect(`1775 root root /run/outrider
1775 root root /run/outrider/edge
2751 outrider outrider-envoy /run/outrider/edge/envoy
1770 root outrider-envoy /run/outrider-envoy
1770 root outrider-envoy /run/outrider-envoy/edge`, whose)
	h.expect("710 root outrider", "stat -c '%a %U %G' /var/lib/outrider")
	h.expect("", "findmnt -n -o TARGET /run/outrider-envoy || true")
	h.expect("envoy-binary.json",
		"cd /var/lib/outrider; find . -maxdepth 1 -type f; ls outrider | grep binary")
}

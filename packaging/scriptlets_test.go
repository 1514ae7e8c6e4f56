package packaging

import "testing"

// Packages for TestMaintainerScripts_Rpm. rpm runs on Debian here, and sets its own $PATH for
// scripts.
const (
	faultyOldRpm = faulty + "/outrider-" + oldVersion + "-1.x86_64.rpm"
	faultyNewRpm = faulty + "/outrider-" + newVersion + "-1.x86_64.rpm"
	rpmCommand   = "rpm --force-debian --nodeps " +
		"--define '_install_script_path /opt/broken:/usr/sbin:/usr/bin:/sbin:/bin' "
	rpmInstalls   = rpmCommand + "-i " + faultyOldRpm
	rpmUpgrades   = rpmCommand + "-U " + faultyNewRpm
	rpmErases     = rpmCommand + "-e outrider"
	oldRpm        = "installed " + oldVersion
	newRpm        = "installed " + newVersion
	oldRpmRunning = oldRpm + running
	newRpmRunning = newRpm + running
	// The argument of %posttrans differs between versions of rpm.
	posttrans = "posttrans- posttrans-0 posttrans-1 posttrans-2"
)

// rpmPaths are the sequences of scripts of an rpm, each with a failure. A failure of %pre or %preun
// ends the operation; that of another script is a warning.
var rpmPaths = []path{
	{name: "install/pre fails", from: absent, faults: "pre-1", do: rpmInstalls, fails: true,
		want: absent},
	{name: "install/post fails", from: absent, faults: "post-1", do: rpmInstalls, want: oldRpm,
		finish: restore, ends: oldRpmRunning},
	{name: "erase/postun fails", from: oldRpmRunning, faults: "postun-0", do: rpmErases,
		want: removed},
	{name: "install/posttrans fails", from: removed, faults: posttrans, do: rpmInstalls,
		want: oldRpm, finish: restore, ends: oldRpmRunning},
	{name: "erase/preun fails", from: oldRpmRunning, faults: "preun-0", do: rpmErases, fails: true,
		want: oldRpm,
		finish: "systemctl start $(cd /etc/systemd/system/multi-user.target.wants; ls -d " +
			"outrider*)",
		ends: oldRpmRunning},
	{name: "erase/cleaning up fails", from: oldRpmRunning, broken: "outrider", do: rpmErases,
		want: removed},
	{name: "erase/an Envoy was installed", from: oldRpmRunning,
		do: "install -D /bin/true /usr/lib/outrider/envoy-1.39.3/envoy && " +
			"ln -s envoy-1.39.3/envoy /usr/lib/outrider/envoy && " + rpmErases,
		want: removed},
	{name: "install/systemd does not answer", from: absent,
		broken: "systemctl systemd-tmpfiles journalctl", do: rpmInstalls,
		want: oldRpm, finish: restore, ends: oldRpmRunning},

	{name: "upgrade/pre fails", from: oldRpmRunning, faults: "pre-2", do: rpmUpgrades, fails: true,
		want: oldRpmRunning},
	{name: "upgrade/post fails", from: oldRpmRunning, faults: "post-2", do: rpmUpgrades,
		want: newRpmRunning},
	{name: "upgrade/old postun fails", from: oldRpmRunning, faults: "postun-1", do: rpmUpgrades,
		want: newRpmRunning},
	{name: "upgrade/old preun fails", from: oldRpmRunning, faults: "preun-1", do: rpmUpgrades,
		fails: true,
		want:  oldRpm + "\n" + newRpmRunning, finish: rpmCommand + "-e outrider-" + oldVersion,
		ends: newRpmRunning},
	{name: "upgrade/posttrans fails", from: oldRpmRunning, faults: posttrans, do: rpmUpgrades,
		want: newRpmRunning},
	{name: "upgrade/systemd does not answer", from: oldRpmRunning,
		broken: "systemctl systemd-tmpfiles journalctl",
		do:     rpmUpgrades, want: newRpmRunning},
}

// TestMaintainerScripts_Rpm checks the rpm as TestMaintainerScripts_Deb does the deb.
func TestMaintainerScripts_Rpm(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	rpmWithFaults(t, shared.old(t), oldVersion, folder)
	rpmWithFaults(t, shared.new(t), newVersion, folder)
	const (
		installed = "rpm --force-debian -q outrider"
		eraseAll  = "! " + installed + " || " + rpmErases
		removeAll = "rm -rf /etc/outrider /var/lib/outrider /var/log/outrider"
		install   = rpmInstalls + " && " + restore
	)
	h := &pathHost{
		host: newHost(t, folder+":"+faulty), files: map[string]string{},
		state: `if ` + installed + ` >/dev/null 2>&1; then
				rpm --force-debian -q --qf 'installed %{VERSION}\n' outrider | sort
			elif [ -d /etc/outrider ]; then
				echo config-files
			else
				echo absent
			fi`,
		reach: map[string]string{
			absent:        eraseAll + "; " + removeAll,
			removed:       install + " && " + rpmErases,
			oldRpmRunning: eraseAll + "; " + install,
		},
	}
	h.record(absent)
	h.script(rpmInstalls)
	h.configure()
	h.script(save + " && " + enable + " && " + restart)
	h.record(oldRpmRunning)
	h.script(rpmErases)
	h.record(removed)
	h.runAll(t, rpmPaths)
}

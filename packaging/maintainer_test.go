package packaging

import (
	"path/filepath"
	"testing"
)

// Packages for TestMaintainerScripts_Deb.
const (
	faulty    = "/opt/faulty"
	faultyOld = faulty + "/outrider_" + oldVersion + "-1_amd64.deb"
	faultyNew = faulty + "/outrider_" + newVersion + "-1_amd64.deb"
	clashing  = faulty + "/clashing.deb" // the new version, plus a file that another package owns
	rival     = faulty + "/rival.deb"    // conflicts with outrider and replaces it
	breaking  = faulty + "/breaking.deb" // breaks outrider
)

// An administrator enables an agent before the package is configured again.
const configureAgain = "systemctl enable outrider.service && dpkg --configure outrider && " +
	"systemctl is-enabled outrider.service && " +
	`[ "$(stat -c '%a %G' /etc/outrider/outrider.toml)" = "640 outrider" ] && ` + restore

// debPaths are the sequences of maintainer scripts in chapter 6 of Debian's policy, each with a
// failure.
var debPaths = []path{
	{name: "install/preinst fails", from: absent, faults: "preinst-install",
		do: "dpkg -i " + faultyNew, fails: true, want: absent},
	{name: "install/preinst and postrm fail", from: absent,
		faults: "preinst-install postrm-abort-install",
		do:     "dpkg -i " + faultyNew, fails: true, want: "half-installed " + newVersion + "-1",
		finish: "dpkg -i " + faultyOld + " && dpkg -P outrider", ends: absent},
	{name: "install/postinst fails in the middle", from: absent, broken: "systemd-sysusers",
		do: "dpkg -i " + faultyOld, fails: true, want: oldHalf, finish: configureAgain,
		ends: oldRunning},
	{name: "purge/postrm fails in the middle", from: removed, broken: "find",
		do: "dpkg -P outrider", fails: true, want: removed, finish: "dpkg -P outrider",
		ends: absent},
	{name: "install/postinst fails at its end", from: absent, faults: "postinst-configure",
		do: "dpkg -i " + faultyOld, fails: true, want: oldHalf, finish: configureAgain,
		ends: oldRunning},
	{name: "purge/postrm fails at its end", from: removed, faults: "postrm-purge",
		do: "dpkg -P outrider", fails: true, want: removed, finish: "dpkg -P outrider",
		ends: absent},
	{name: "install/systemd does not answer", from: absent,
		broken: "systemctl deb-systemd-invoke systemd-tmpfiles",
		do:     "dpkg -i " + faultyOld, want: oldDeb, finish: restore, ends: oldRunning},

	{name: "upgrade/old prerm fails", faults: "prerm-upgrade",
		do: "dpkg -i " + faultyNew, want: newRunning},
	{name: "upgrade/old and new prerm fail", faults: "prerm-upgrade prerm-failed-upgrade",
		do: "dpkg -i " + faultyNew, fails: true, want: oldRunning},
	{name: "upgrade/preinst fails", faults: "preinst-upgrade",
		do: "dpkg -i " + faultyNew, fails: true, want: oldRunning},
	{name: "upgrade/preinst and postinst fail", faults: "preinst-upgrade postinst-abort-upgrade",
		do: "dpkg -i " + faultyNew, fails: true, want: "unpacked " + oldVersion + "-1" + running,
		finish: "dpkg --configure outrider", ends: oldRunning},
	{name: "upgrade/unpacking fails", do: "dpkg -i " + clashing, fails: true, want: oldRunning},
	{name: "upgrade/old postrm fails", faults: "postrm-upgrade", do: "dpkg -i " + faultyNew,
		want: newRunning},
	{name: "upgrade/old and new postrm fail", faults: "postrm-upgrade postrm-failed-upgrade",
		do: "dpkg -i " + faultyNew, fails: true, want: oldRunning},
	{name: "upgrade/postinst fails in the middle", broken: "systemd-sysusers",
		do: "dpkg -i " + faultyNew, fails: true, want: newHalf + running,
		finish: "dpkg --configure outrider", ends: newRunning},
	{name: "upgrade/systemd does not answer",
		broken: "systemctl deb-systemd-invoke systemd-tmpfiles",
		do:     "dpkg -i " + faultyNew, want: newRunning},

	{name: "remove/prerm fails", faults: "prerm-remove", do: "dpkg -r outrider", fails: true,
		want: oldRunning},
	{name: "remove/prerm and postinst fail", faults: "prerm-remove postinst-abort-remove",
		do: "dpkg -r outrider", fails: true, want: oldHalf + running,
		finish: "dpkg --configure outrider", ends: oldRunning},
	{name: "remove in favour/preinst of the other fails", do: "dpkg -i " + rival, fails: true,
		want: oldRunning},
	{name: "remove in favour/prerm fails", faults: "prerm-remove", do: "dpkg -i " + rival,
		fails: true, want: oldRunning},
	{name: "deconfigure/preinst of the other fails",
		do: "dpkg --auto-deconfigure -i " + breaking, fails: true, want: oldRunning},
	{name: "deconfigure/prerm fails", faults: "prerm-deconfigure",
		do: "dpkg --auto-deconfigure -i " + breaking, fails: true, want: oldRunning},
	{name: "remove/cleaning up fails", broken: "outrider", do: "dpkg -r outrider", want: removed},

	{name: "reinstall/preinst fails", from: removed, faults: "preinst-install",
		do: "dpkg -i " + faultyOld, fails: true, want: removed},
	{name: "reinstall/run cannot be written to", from: removed,
		do:   "unshare -m sh -c 'mount -o bind,ro /run /run && dpkg -i " + faultyOld + "'",
		want: oldDeb, finish: restart, ends: oldRunning},
	{name: "remove/postrm fails", faults: "postrm-remove", do: "dpkg -r outrider", fails: true,
		want: "half-installed " + oldVersion + "-1", finish: "dpkg -r outrider", ends: removed},
	{name: "reinstall/postinst fails", from: removed, broken: "systemd-sysusers",
		do: "dpkg -i " + faultyOld, fails: true, want: oldHalf, finish: "dpkg --configure outrider",
		ends: oldRunning},
}

// TestMaintainerScripts_Deb checks after each path that the package has the state that dpkg
// documents, that enabled agents serve as before, and that no file is left over or missing.
func TestMaintainerScripts_Deb(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	in := func(path string) string { return filepath.Join(folder, filepath.Base(path)) }
	oldPackage, newPackage := deb(shared.old(t), oldVersion), deb(shared.new(t), newVersion)
	debWithFaults(t, oldPackage, in(faultyOld))
	debWithFaults(t, newPackage, in(faultyNew))
	debWithFaults(t, newPackage, in(clashing), "/usr/bin/env")
	rivalDeb(t, "rival", "Conflicts: outrider\nReplaces: outrider\nProvides: outrider\n", in(rival))
	rivalDeb(t, "breaking", "Breaks: outrider\n", in(breaking))
	h := &pathHost{
		host: newHost(t, folder+":"+faulty), files: map[string]string{},
		state: `status=$(dpkg-query -W -f '${db:Status-Status}' outrider 2>/dev/null)
			case $status in
			"" | not-installed) echo absent ;;
			config-files) echo config-files ;;
			*) dpkg-query -W -f '${db:Status-Status} ${Version}' outrider ;;
			esac`,
		reach: map[string]string{
			absent:     "dpkg -P outrider",
			removed:    "dpkg -i " + faultyOld + " && " + restore + " && dpkg -r outrider",
			oldRunning: "dpkg -i " + faultyOld + " && " + restore,
		},
	}
	h.record(absent)
	h.script("dpkg -i " + faultyOld + " && " + restrict)
	h.configure()
	h.script(save + " && " + enable + " && " + restart)
	h.record(oldRunning)
	h.script("dpkg -r outrider")
	h.record(removed)
	h.runAll(t, debPaths)
}

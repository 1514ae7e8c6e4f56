package bus

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"outrider.org/outrider/scripts/parts"
)

// member is the user daemon, which realPolkit adds to group outrider.
const member = 1

// realPolkit is a script that runs polkitd on a private bus. Its own mounts contain the actions and
// rules of the agent, a user in group outrider, and a rule that allows the user nobody to drain.
// Its arguments are a directory and the directory of actions and rules.
const realPolkit = `set -eu
mount --make-rprivate /
mkdir "$1/actions" "$1/rules"
cp /usr/share/polkit-1/actions/org.freedesktop.policykit.policy "$2"/*.policy "$1/actions"
cp "$2"/*.rules "$1/rules"
{ grep -v '^outrider:' /etc/group; echo outrider:x:64999:daemon; } >"$1/group"
cat >"$1/rules/10-test.rules" <<'END'
polkit.addRule(function (action, subject) {
	if (action.id == "org.outrider.agent1.drain" && subject.user == "nobody") return polkit.Result.YES;
});
END
chmod 755 "$1/actions" "$1/rules"
mount --bind "$1/actions" /usr/share/polkit-1/actions
mount --bind "$1/rules" /etc/polkit-1/rules.d
mount --bind "$1/group" /etc/group
exec /usr/lib/polkit-1/polkitd --no-debug
`

func TestTheRealPolkit(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	d.configure("</busconfig>",
		"<include>/usr/share/dbus-1/system.d/org.freedesktop.PolicyKit1.conf</include></busconfig>")
	d.start()
	command := exec.Command("unshare", "--mount", "sh", "-c", realPolkit, "sh", d.folder,
		filepath.Join(parts.RepositoryRoot(), "packaging/polkit"))
	command.Env = append(os.Environ(), "DBUS_SYSTEM_BUS_ADDRESS="+d.address())
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var said bytes.Buffer
	command.Stdout, command.Stderr = &said, &said
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		if t.Failed() {
			t.Logf("polkitd said: %s", &said)
		}
	})
	eventually(t, "polkitd is on the bus", func() bool {
		return strings.Contains(d.must(0, "list", "--acquired"), polkitName)
	})
	a := newAgent()
	server, _ := a.start(t, d)
	await(t, server.Ready(), "the name is taken")
	for _, c := range changing {
		arguments := append([]string{"--allow-interactive-authorization=no", "call", wellKnownName,
			c.object}, c.arguments...)
		if out, err := d.busctl(member, arguments...); err != nil {
			t.Errorf("a member of group outrider may not %v: %v: %s", c.arguments, err, out)
		}
		for interactive, want := range map[string]string{"no": "needs a password",
			"yes": "polkit does not allow org.outrider.agent1." + c.action} {
			out, err := d.busctl(nobody, append([]string{"--allow-interactive-authorization=" +
				interactive, "call", wellKnownName, c.object}, c.arguments...)...)
			switch {
			case c.action == "drain" && err != nil:
				t.Errorf("%v is allowed by a rule: %v: %s", c.arguments, err, out)
			case c.action != "drain" && (err == nil || !strings.Contains(out, want)):
				t.Errorf("%v, interactive %s: %v: %s", c.arguments, interactive, err, out)
			}
		}
	}
	d.must(0, "call", wellKnownName, manager, managerInterface, "Reload", "t", "0")
}

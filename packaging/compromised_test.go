package packaging

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

// An attack is a shell script that a process with Envoy's UID could run on everything that this
// user owns. Its own failures do not matter.
type attack struct {
	name   string
	script string
	asRoot bool // needs root on this kernel
	// always means that the attack runs even without OUTRIDER_TEST_FULL. Each attack takes half a
	// minute.
	always bool
}

// each is a shell loop over the directories $d of all agents; % stands for the command.
const each = `for d in /run/outrider-envoy /run/outrider-envoy/edge /run/outrider-envoy/next; do cd "$d" 2>/dev/null || continue; %; done; `

// names is a shell loop over the names $n of the files that root, the agents or the keeper use in
// the current directory; % stands for the command.
const names = `for n in base-id lock keeper.sock admin-0.sock admin-1.sock hot_restart_parent_1; do rm -rf $n; %; done`

func inEach(command string) string { return strings.ReplaceAll(each, "%", command) }
func ofEach(command string) string { return inEach(strings.ReplaceAll(names, "%", command)) }

var attacks = []attack{
	{name: "symbolic links", script: ofEach(`ln -s /canary/$n $n`) +
		`ln -sf /canary/base-id /dev/shm/envoy_shared_memory_47110; ln -s /canary/x.log /var/log/outrider/x.log`},
	{name: "FIFOs", always: true, script: ofEach(`mkfifo $n`) +
		`mkfifo /dev/shm/envoy_shared_memory_47110 /var/log/outrider/x.log`},
	{name: "directories", script: ofEach(`mkdir -p $n/a/b`) +
		`mkdir /dev/shm/envoy_shared_memory_47110`},
	{name: "devices", asRoot: true, script: ofEach(`mknod $n c 5 0; chown outrider-envoy $n`)},
	{name: "hard links", script: ofEach(`echo 4711 >$n; ln $n x-$n; ln -f /canary/open $n`)},
	{name: "hard links where the kernel allows them", asRoot: true,
		script: `touch /run/outrider-envoy/outside; ` +
			ofEach(`ln /run/outrider-envoy/outside $n`)},
	{name: "renamed directories", always: true, script: `
for d in /run/outrider-envoy/edge /run/outrider-envoy/next /run/outrider-envoy /run/outrider/envoy /run/outrider/edge /var/log/outrider; do
	mv $d $d.away && ln -s /canary $d
done
mv /run/outrider-envoy/edge /run/outrider-envoy/elsewhere; ln -sT /canary /run/outrider-envoy/edge; ln -sT /canary /run/outrider-envoy/next`},
	{name: "a base id of others", script: ofEach(`echo 4711 >$n`)},
	{name: "a full directory",
		script: inEach(
			`head -c 100M /dev/zero >fill; i=0; while : >f$i; do i=$((i+1)); done; chmod 0 f*`)},
	{name: "locks and leases",
		script: inEach(`[ -e base-id ] || echo 4711 >base-id; [ -e lock ] || : >lock; ` +
			`setsid python3 -c 'import fcntl, os, time
for name in ("lock", "base-id"):
    file = os.open(name, os.O_RDWR)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB) if name == "lock" else fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
time.sleep(600)' >/dev/null 2>&1 &`)},
	{name: "a keeper that stands still",
		script: `kill -STOP $(pgrep -x outrider-keepe) $(pgrep -x envoy)`},
}

// canary is a directory of root that looks like the directories of an agent and a keeper, with dead
// sockets.
const canary = `set -eu
rm -rf /canary; mkdir -p /canary/envoy; cd /canary
for file in base-id lock envoy/envoy-rev0.json x.log open; do echo 4711 >$file; done
chmod 666 open
for socket in admin-0.sock admin-1.sock outrider.sock keeper.sock hot_restart_parent_1 envoy/xds.sock; do
	python3 -c 'import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])' $socket
done
echo x >/dev/shm/envoy_shared_memory_47120; ln -sfn /canary /dev/shm/canary`

// untouched prints everything that must not change.
const untouched = `find /canary /dev/shm/envoy_shared_memory_47120 -printf '%p %y %m %U %G %s %i %n\n' | sort; cat /canary/base-id`

// moments are operations of root during the attack. Each has a time limit, since nothing may hang.
// A compromised Envoy may prevent its own restart, but not the removal of the package.
var moments = []struct {
	name, command string
	limit         time.Duration
	must          bool
}{
	{name: "restart", command: "systemctl restart outrider.service outrider@edge.service",
		limit: 100 * time.Second},
	{name: "a new instance", command: "systemctl start outrider@next.service",
		limit: 100 * time.Second},
	{name: "cleanup beside a keeper", command: "outrider cleanup; outrider -i edge cleanup",
		limit: 10 * time.Second},
	{name: "stop",
		command: "systemctl stop outrider.service outrider@edge.service outrider@next.service",
		limit:   130 * time.Second},
	{name: "cleanup", command: "outrider cleanup; outrider -i edge cleanup --stop",
		limit: 40 * time.Second},
	{name: "boot's cleanup", command: "systemctl restart outrider-cleanup.service",
		limit: 40 * time.Second},
	{name: "remove", command: "dpkg -r outrider", limit: 180 * time.Second, must: true},
	{name: "purge", command: "dpkg -P outrider", limit: 30 * time.Second, must: true},
}

// With a compromised Envoy, root's operations neither change anything outside of Envoy's own
// directories nor hang.
func TestUninstall_WithCompromisedEnvoy(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	for _, a := range attacks {
		if !a.always && os.Getenv("OUTRIDER_TEST_FULL") == "" {
			continue
		}
		t.Run(a.name, func(t *testing.T) {
			h := &host{Machine: h.Machine, t: t}
			h.script(installDeb + deb(newPlace, newVersion))
			h.configure()
			h.script(`sed s/16/17/g /etc/outrider/edge.toml >/etc/outrider/next.toml; systemctl restart systemd-journald`)
			h.script("systemctl enable --now outrider.service outrider@edge.service 2>&1")
			h.serves("outrider", "outrider@edge")
			h.script(canary)
			before := h.script(untouched)
			for _, moment := range moments {
				h.attack(a)
				began := time.Now()
				out, err := h.within(moment.limit, moment.command)
				t.Logf("%s: %v %v\n%s", moment.name, time.Since(began).Round(time.Millisecond), err,
					out)
				if errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s hangs: %s", moment.name, out)
				} else if err != nil && moment.must {
					t.Errorf("%s fails: %v", moment.name, err)
				}
				if after := h.script(untouched); after != before {
					t.Fatalf("%s touched what is root's:\n%s\nbefore:\n%s", moment.name, after,
						before)
				}
			}
			h.script(`kill -KILL $(pgrep -u outrider-envoy); rm -rf /dev/shm/envoy_shared_memory_* /etc/outrider; true`)
			h.expect("", "ls -d /run/outrider* 2>/dev/null || true")
		})
	}
}

func (h *host) attack(a attack) {
	h.t.Helper()
	user := "runuser -u outrider-envoy -- "
	if a.asRoot {
		user = ""
	}
	// The attack may fail, or be refused.
	if out, err := h.within(60*time.Second, user+"timeout 50 sh -c "+quote(a.script)+
		" >/tmp/attack 2>&1; true"); err != nil {
		h.t.Fatalf("the attack does not end: %v %s", err, out)
	}
}

func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// within runs a script with a time limit.
func (h *host) within(limit time.Duration, script string) (string, error) {
	ctx, cancel := context.WithTimeout(h.t.Context(), limit)
	defer cancel()
	out, err := h.Run(ctx, "sh", "-c", script)
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return out, err
}

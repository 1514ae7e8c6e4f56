package packaging

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// path is one sequence of maintainer scripts that a package manager may run.
type path struct {
	name   string
	from   string // initial state; "" for oldRunning
	faults string // scripts that fail at their end: SCRIPT-ARGUMENT …
	broken string // programs that fail when a script calls them
	do     string // shell script
	fails  bool   // whether do exits with an error
	want   string // state after do
	finish string // shell script that an administrator runs after do; "": none
	ends   string // state after finish
}

// A state is what the package manager reports, with running appended if both agents and their
// Envoys must serve.
const (
	absent     = "absent"
	removed    = "config-files"
	running    = " running"
	oldDeb     = "installed " + oldVersion + "-1"
	newDeb     = "installed " + newVersion + "-1"
	oldHalf    = "half-configured " + oldVersion + "-1"
	newHalf    = "half-configured " + newVersion + "-1"
	oldRunning = oldDeb + running
	newRunning = newDeb + running
)

const (
	enable  = "systemctl enable outrider.service outrider@edge.service"
	restart = "systemctl restart outrider.service outrider@edge.service"
	save    = "mkdir -p /opt/saved && cp -a /etc/outrider/. /opt/saved/"
	restore = "cp -a /opt/saved/. /etc/outrider/ && " + enable + " && " + restart
	// A choice of the administrator that later scripts must respect.
	restrict = "chmod 0440 /etc/outrider/outrider.toml"
)

// pathHost is a machine on which package managers run sequences of maintainer scripts (paths).
type pathHost struct {
	*host
	state string            // shell script that prints the state of the package
	reach map[string]string // script that reaches a state, by state
	files map[string]string // output of listing, by kind of state
}

// listing prints the package's files, the files that the package has created, and the digests of
// the configuration.
const listing = `find /etc /usr /var -xdev -name '*outrider*' ! -path '/usr/share/doc/*' \
	! -path '/var/tmp/*' -printf '%p %M %u %g %l\n' | sort
[ ! -d /etc/outrider ] ||
	find /etc/outrider -type f -printf '%M %u %g ' -exec sha256sum {} \; | sort`

// kind returns the state without its version, for comparing files. An unpacked or half-configured
// package counts as installed, because it has all its files.
func kind(state string) string {
	state, _, _ = strings.Cut(state, " ")
	if state == "half-configured" || state == "unpacked" {
		return "installed"
	}
	return state
}

// record stores the files of a state that was reached without a failure.
func (h *pathHost) record(state string) {
	h.t.Helper()
	h.expectState(state)
	h.files[kind(state)] = h.script(listing)
}

func (h *pathHost) expectState(want string) {
	h.t.Helper()
	state, runs := strings.CutSuffix(want, running)
	h.expect(state, h.state)
	if runs {
		h.serves("outrider", "outrider@edge")
	}
	if state == absent || state == removed {
		h.nothingRuns()
	}
	// /run/outrider.returns remains in state half-configured: the next attempt to configure needs
	// it
	if !strings.HasPrefix(state, "half-configured") {
		h.expect("", "ls /run/outrider.returns 2>/dev/null || true")
	}
}

// expectFiles compares the files with those recorded for the state.
func (h *pathHost) expectFiles(state string) {
	h.t.Helper()
	want := strings.Split(h.files[kind(state)], "\n")
	if changes := cmp.Diff(want, strings.Split(h.script(listing), "\n")); changes != "" {
		h.t.Errorf("files (-recorded when %s, +now):\n%s", kind(state), changes)
	}
}

// run brings the package into the initial state of the path, and runs the path.
func (h *pathHost) run(p path) {
	h.t.Helper()
	from := p.from
	if from == "" {
		from = oldRunning
	}
	if h.script(h.state) != strings.TrimSuffix(from, running) {
		h.script(h.reach[from])
	}
	h.expectState(from)
	h.expectFiles(from)
	if h.t.Failed() {
		h.t.Fatalf("cannot reach the state %q", from)
	}

	h.script("mkdir -p /opt/broken; echo '" + p.faults + "' >" + faultsFile)
	for program := range strings.FieldsSeq(p.broken) {
		h.script("ln -s /bin/false /opt/broken/" + program)
	}
	const environment = "export PATH=/opt/broken:$PATH DEBIAN_FRONTEND=noninteractive; "
	out, err := h.Run(h.t.Context(), "sh", "-c", environment+p.do)
	h.script("rm -rf /opt/broken " + faultsFile)
	if (err != nil) != p.fails {
		h.t.Errorf("fails: %v, want %v", err, p.fails)
	}
	h.expectState(p.want)
	if p.finish == "" {
		h.expectFiles(p.want)
	} else {
		h.script(p.finish)
		h.expectState(p.ends)
		h.expectFiles(p.ends)
	}
	if h.t.Failed() {
		h.t.Logf("%s\nprints:\n%s", p.do, out)
	}
}

// runAll runs each path as a subtest. Each creates its own initial state, so a failure does not
// affect the next one.
func (h *pathHost) runAll(t *testing.T, paths []path) {
	for _, p := range paths {
		t.Run(p.name, func(t *testing.T) {
			sub := *h
			sub.host = &host{Machine: h.Machine, t: t}
			sub.run(p)
		})
	}
}

package house

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// layer is a set of rooms, separated by spaces. A room is a directory with its subdirectories,
// except subdirectories that are rooms of their own.
type layer struct {
	name  string
	rooms string
}

// layers contains the layers of the source tree, the lowest first. A room, which is a directory
// with its subdirectories, may import rooms of the same layer and of lower ones, without circles.
// The layer "server" is below all rooms that depend on an agent, so that outrider-discoveryd can
// import it.
var layers = []layer{
	{"leaves", `agent/accept agent/access agent/admission agent/backoff agent/condition agent/credential
		agent/fdstore agent/fetch agent/histogram agent/jwt agent/lifecycle
		agent/operator agent/ownership agent/readfile agent/recordfile agent/redact
		agent/reexec agent/repeat agent/resource agent/rpc
		agent/sockdiag agent/spelling agent/typedconfig agent/unixpeer agent/watch
		packaging packaging/dbus packaging/examples packaging/man packaging/prometheus`},
	{"server", `agent/discovery agent/identity/pki agent/identity/pkitest agent/jwks agent/wasm agent/xds`},
	{"parts", `agent/api agent/blueprint agent/bus agent/capture agent/cloud
		agent/config agent/diskspace agent/dns agent/endpoints agent/envoy agent/epoch
		agent/exposure agent/health agent/identity agent/journal agent/keeper
		agent/hostconflict agent/ports agent/probe agent/relay agent/status agent/sts agent/systemd bootstrap`},
	{"compositions", `agent cmd/outrider-discoveryd`},
	{"programs", `cmd/outrider cmd/outriderd cmd/outrider-bootstrap cmd/outrider-capture
		cmd/outrider-keeper cmd/outrider-probe`},
	{"scripts", `scripts`},
}

// discoveryd is the room of outrider-discoveryd. In the layer "parts", it may import only
// discoverydParts, because outrider-discoveryd must not depend on an agent.
const (
	discoveryd      = "cmd/outrider-discoveryd"
	discoverydParts = "agent/config agent/journal agent/systemd"
)

// programs contains the rooms that a program may import in addition to those of the layers "leaves"
// and "server". cmd/outrider, which is not listed, may also import all rooms of the layer "parts".
var programs = map[string]string{
	"cmd/outriderd":          "agent agent/config",
	"cmd/outrider-bootstrap": "agent/discovery bootstrap",
	"cmd/outrider-capture":   "agent/capture agent/dns",
	"cmd/outrider-keeper":    "agent/keeper",
	"cmd/outrider-probe":     "agent/probe",
}

// room returns the room of a package and the index of the room's layer, or -1 if the package has no
// room. A subdirectory of agent does not belong to the room agent.
func room(path string) (name string, at int) {
	at = -1
	for i, l := range layers {
		for r := range strings.FieldsSeq(l.rooms) {
			below := r != "agent" && strings.HasPrefix(path, r+"/")
			if (path == r || below) && len(r) > len(name) {
				name, at = r, i
			}
		}
	}
	return name, at
}

// refuse returns the reason why a package may not import another package of the module, "" if it
// may.
func refuse(path, imported string) string {
	from, low := room(path)
	to, high := room(imported)
	switch {
	case low < 0 || high < 0:
		return "a package without a layer: add its room to layers"
	case to == discoveryd && from != discoveryd:
		return "a composition imports no program"
	case high > low:
		return fmt.Sprintf("%s import no %s", layers[low].name, layers[high].name)
	case from == discoveryd && to != from && layers[high].name != "leaves" &&
		layers[high].name != "server" && !slices.Contains(strings.Fields(discoverydParts), to):
		return fmt.Sprintf("%s imports only leaves, server, %s", from, discoverydParts)
	case layers[low].name != "programs" || to == from || layers[high].name == "leaves":
		return ""
	case from == "cmd/outrider" && layers[high].name == "parts" || layers[high].name == "server":
		return ""
	case !slices.Contains(strings.Fields(programs[from]), to):
		return fmt.Sprintf("%s imports only %s", from, programs[from])
	}
	return ""
}

// imports contains the set of rooms that each room imports.
type imports map[string]map[string]bool

func (i imports) add(from, to string) {
	if i[from] == nil {
		i[from] = map[string]bool{}
	}
	if from != to {
		i[from][to] = true
	}
}

// circle returns rooms that import each other in a circle, or nil.
func (i imports) circle() []string {
	done := map[string]bool{}
	var visit func(path []string) []string
	visit = func(path []string) []string {
		last := path[len(path)-1]
		if at := slices.Index(path, last); at < len(path)-1 {
			return path[at:]
		}
		if done[last] {
			return nil
		}
		for _, next := range slices.Sorted(maps.Keys(i[last])) {
			if found := visit(append(slices.Clone(path), next)); found != nil {
				return found
			}
		}
		done[last] = true
		return nil
	}
	for _, r := range slices.Sorted(maps.Keys(i)) {
		if found := visit([]string{r}); found != nil {
			return found
		}
	}
	return nil
}

// depth returns the length of the longest chain of imports that begins with a room and stays within
// its layer. There must be no circle.
func (i imports) depth(from string) int {
	deepest := 0
	_, at := room(from)
	for to := range i[from] {
		if _, other := room(to); other == at {
			deepest = max(deepest, 1+i.depth(to))
		}
	}
	return deepest
}

// Imports must follow layers. With -v the test prints the layers, with each directory (room) on a
// line below the directories that it imports.
func TestImports_FormLayersWithoutCircles(t *testing.T) {
	found := imports{}
	for _, p := range list(t, "./...") {
		path, ok := strings.CutPrefix(p.ImportPath, module)
		if !ok {
			continue
		}
		from, _ := room(path)
		found.add(from, from)
		for _, imported := range p.Imports {
			imported, ok := strings.CutPrefix(imported, module)
			if !ok {
				continue
			}
			if why := refuse(path, imported); why != "" {
				t.Errorf("%s imports %s: %s", path, imported, why)
			}
			to, _ := room(imported)
			found.add(from, to)
		}
	}
	if circle := found.circle(); circle != nil {
		t.Fatalf("rooms import each other in a circle: %s", strings.Join(circle, " → "))
	}
	for _, l := range layers {
		var lines []string
		for r := range strings.FieldsSeq(l.rooms) {
			if found[r] == nil && r != "packaging" {
				t.Errorf("layers has %s, which is no package", r)
			}
			for depth := found.depth(r); len(lines) <= depth; {
				lines = append(lines, "")
			}
			lines[found.depth(r)] += " " + r
		}
		t.Logf("%s:\n %s", l.name, strings.Join(lines, "\n "))
	}
}

func TestImports_TheCheckRefuses(t *testing.T) {
	for _, c := range []struct{ from, imported, want string }{
		{"agent/condition", "agent/repeat", ""},
		{"agent/condition", "agent/config", "leaves import no parts"},
		{"agent/xds", "agent/resource", ""},
		{"agent/discovery", "agent/discovery/store", ""},
		{"agent/discovery/store", "agent/config", "server import no parts"},
		{"agent/identity/pki", "agent/identity", "server import no parts"},
		{"agent/identity", "agent/identity/pki", ""},
		{"agent/xds", "agent/epoch", "server import no parts"},
		{"agent/epoch", "agent/keeper", ""},
		{"agent/epoch", "agent", "parts import no compositions"},
		{"agent/keeper", "scripts/load", "parts import no scripts"},
		{"agent/new", "agent/keeper", "a package without a layer: add its room to layers"},
		{"agent", "agent/discovery/store", ""},
		{"cmd/outrider-discoveryd", "agent/config", ""},
		{"cmd/outrider-discoveryd/internal/memory", "agent/discovery/store", ""},
		{"cmd/outrider-discoveryd", "agent/epoch", "cmd/outrider-discoveryd imports only leaves, " +
			"server, agent/config agent/journal agent/systemd"},
		{"cmd/outrider-discoveryd", "agent", "cmd/outrider-discoveryd imports only leaves, server, " +
			"agent/config agent/journal agent/systemd"},
		{"agent", "cmd/outrider-discoveryd", "a composition imports no program"},
		{"cmd/outriderd", "agent", ""},
		{"cmd/outriderd", "agent/epoch", "cmd/outriderd imports only agent agent/config"},
		{"cmd/outrider", "agent", "cmd/outrider imports only "},
		{"cmd/outrider", "agent/api", ""},
		{"cmd/outrider-keeper", "agent/unixpeer", ""},
		{"cmd/outrider-keeper", "agent/epoch", "cmd/outrider-keeper imports only agent/keeper"},
	} {
		if got := refuse(c.from, c.imported); got != c.want {
			t.Errorf("%s imports %s: %q, want %q", c.from, c.imported, got, c.want)
		}
	}
	circle := imports{}
	for from, to := range map[string]string{"a": "b", "b": "c", "c": "d", "d": "b"} {
		circle.add(from, to)
	}
	if diff := cmp.Diff([]string{"b", "c", "d", "b"}, circle.circle()); diff != "" {
		t.Error(diff)
	}
	delete(circle, "d")
	if found := circle.circle(); found != nil {
		t.Errorf("a circle without a circle: %v", found)
	}
}

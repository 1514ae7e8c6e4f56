package discovery_test

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
)

// TestConformance gives the YAML of all cases in testdata/conformance to one real Envoy of each kind and asks what the
// cases ask. testdata/conformance/README says how a case is written.
func TestConformance(t *testing.T) {
	variables, backends, take := conformanceBackends(t)
	for _, kind := range []string{"sidecar", "router"} {
		files, err := filepath.Glob(filepath.Join("testdata", "conformance", kind, "*.txtar"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no cases for %s: %v", kind, err)
		}
		directory := t.TempDir()
		var cases []*conformanceCase
		for _, path := range files {
			c := readCase(t, path, variables, take(), take())
			cases = append(cases, c)
			write(t, filepath.Join(directory, c.name+".yaml"), c.mesh)
		}
		server, _ := start(t, discovery.Options{Files: []string{directory}, Namespace: "shop"})
		e := startEnvoy(t, kind, server)
		e.listens(t)
		eventually(t, "expected problems are told", func() (bool, string) {
			missing := missing(cases, server.Problems())
			return missing == "", missing
		})
		for _, p := range server.Problems() {
			if name := strings.TrimSuffix(filepath.Base(p.File), ".yaml"); p.Severity != condition.Info && !findCase(cases, name).expects(p) {
				t.Errorf("unexpected problem: %s", p)
			}
		}
		explainer := newExplainer(t, server, kind, variables)
		for _, c := range cases {
			t.Run(kind+"/"+c.name, func(t *testing.T) {
				for _, x := range c.exchanges {
					x.must(t, c.port)
					x.aside(t, e, backends)
					explainer.compare(t, x, c.port)
				}
				for _, want := range c.problems {
					t.Errorf("problem not told: %s", want)
				}
			})
		}
		if strings.Contains(e.said(), "deprecated") {
			t.Errorf("Envoy %s warns of something deprecated: %s", kind, regexp.MustCompile(`.*deprecated.*`).FindString(e.said()))
		}
	}
}

// conformanceBackends runs what cases send to until the test ends, and returns what cases call it, the backends by name,
// and what hands out free ports.
func conformanceBackends(t *testing.T) (variables map[string]string, backends map[string]*backend, take func() int) {
	t.Helper()
	variables, backends = map[string]string{}, map[string]*backend{}
	for name, two := range map[string]bool{"a": false, "b": false, "c": false, "bad": false, "two": true} {
		backends[name] = &backend{name: name}
		variables[strings.ToUpper(name)] = strconv.Itoa(backends[name].serve(t, two))
	}
	variables["CONNECT"] = strconv.Itoa(connectProxy(t))
	variables["SOCKET"] = (&backend{name: "socket"}).serveUnix(t)
	all, err := filepath.Glob(filepath.Join("testdata", "conformance", "*", "*.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	ports := freePorts(t, 1+2*len(all))
	take = func() int { port := ports[0]; ports = ports[1:]; return port }
	variables["CLOSED"] = strconv.Itoa(take())
	variables["TCP"] = strconv.Itoa(echoTCP(t, "tcp"))
	variables["CERT"], variables["KEY"] = certificate(t)
	maps.Copy(variables, clients(t, variables["CERT"], variables["KEY"]))
	variables["TLS"] = strconv.Itoa((&backend{name: "tls"}).serveTLS(t, variables["CERT"], variables["KEY"]))
	return variables, backends, take
}

type conformanceCase struct {
	name, mesh string
	meshConfig string
	port       int
	exchanges  []*exchange
	problems   []string // parts of problems that are expected and were not seen yet
}

func findCase(cases []*conformanceCase, name string) *conformanceCase {
	for _, c := range cases {
		if c.name == name {
			return c
		}
	}
	return &conformanceCase{}
}

// missing returns a problem that a case expects and that is not told, "" if there is none. What Envoy refuses is told once
// it is known which of many resources it was.
func missing(cases []*conformanceCase, told []discovery.Problem) string {
	for _, c := range cases {
		for _, want := range c.problems {
			if !slices.ContainsFunc(told, func(p discovery.Problem) bool { return strings.Contains(p.String(), want) }) {
				return c.name + ": " + want
			}
		}
	}
	return ""
}

// expects tells whether a problem is one the case asks for.
func (c *conformanceCase) expects(p discovery.Problem) bool {
	for i, want := range c.problems {
		if strings.Contains(p.String(), want) {
			c.problems = append(c.problems[:i], c.problems[i+1:]...)
			return true
		}
	}
	return false
}

func readCase(t *testing.T, path string, variables map[string]string, port, other int) *conformanceCase {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	c := &conformanceCase{name: strings.TrimSuffix(filepath.Base(path), ".txtar"), port: port}
	expand := func(text []byte) string {
		return os.Expand(string(text), func(name string) string {
			switch value, ok := variables[name]; {
			case name == "PORT":
				return strconv.Itoa(c.port)
			case name == "OTHER":
				return strconv.Itoa(other)
			case ok:
				return value
			}
			t.Fatalf("%s: unknown variable $%s", path, name)
			return ""
		})
	}
	for _, f := range txtar.Parse(content).Files {
		switch f.Name {
		case "mesh.yaml":
			c.mesh = expand(f.Data)
		case "meshconfig.yaml":
			c.meshConfig = expand(f.Data)
		case "requests":
			c.exchanges = readExchanges(t, path, expand(f.Data))
		case "problems":
			c.problems = strings.FieldsFunc(strings.TrimSpace(string(f.Data)), func(r rune) bool { return r == '\n' })
		default:
			t.Fatalf("%s: unknown file %s", path, f.Name)
		}
	}
	return c
}

package discovery_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"outrider.org/outrider/agent/discovery"
)

// suite holds the backends that the cases use.
type suite struct {
	variables map[string]string // by name of a variable in the cases: port of a backend
	backends  map[string]*backend
	ports     []int // free ports that no case uses yet
}

// newSuite runs the backends until the test ends.
func newSuite(t *testing.T) *suite {
	t.Helper()
	variables, backends := map[string]string{}, map[string]*backend{}
	for name, two := range map[string]bool{"a": false, "b": false, "c": false, "bad": false,
		"slow": false, "two": true} {
		backends[name] = &backend{name: name}
		variables[strings.ToUpper(name)] = strconv.Itoa(backends[name].serve(t, two))
	}
	variables["CONNECT"] = strconv.Itoa(connectProxy(t))
	variables["MUTE"], variables["FULL"] = strconv.Itoa(mute(t)), strconv.Itoa(full(t))
	variables["GREET"] = strconv.Itoa(greeter(t, "greet"))
	variables["SOCKET"] = (&backend{name: "socket"}).serveUnix(t)
	s := &suite{variables, backends, freePorts(t, 1+2*len(caseFiles(t, "*")))}
	variables["CLOSED"] = strconv.Itoa(s.take())
	variables["TCP"] = strconv.Itoa(echoTCP(t, "tcp"))
	variables["CERT"], variables["KEY"] = certificate(t, "*.secure.test")
	maps.Copy(variables, clients(t, variables["CERT"], variables["KEY"]))
	variables["TLS"] = strconv.Itoa((&backend{name: "tls"}).serveTLS(t, variables["CERT"],
		variables["KEY"]))
	variables["LAPSED"] = strconv.Itoa((&backend{name: "lapsed"}).serveTLS(t, variables["REVOKED"],
		variables["REVOKED"]))
	return s
}

func (s *suite) take() int {
	port := s.ports[0]
	s.ports = s.ports[1:]
	return port
}

// cases reads the cases in a folder.
func (s *suite) cases(t *testing.T, folder string) []*conformanceCase {
	t.Helper()
	var cases []*conformanceCase
	for _, path := range caseFiles(t, folder) {
		cases = append(cases, readCase(t, path, s.variables, s.take(), s.take()))
	}
	return cases
}

// caseFiles returns the files of the cases in a directory; "*" stands for all directories.
func caseFiles(t *testing.T, folder string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "conformance", folder, "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases in %s: %v", folder, err)
	}
	return files
}

type conformanceCase struct {
	name, mesh string
	later      string // objects that replace mesh from a certain request on
	meshConfig string
	node       string // kind of the case's Envoy; see bootstrapOf
	port       int
	exchanges  []*exchange
	problems   []string // parts of expected problems that were not reported yet
}

// ask sends the requests of a case through its Envoy. Expected problems that were not reported
// remain in c.problems, and fail the test. change replaces the objects of the case.
func (c *conformanceCase) ask(t *testing.T, e *envoy, s *suite, explainer explainer,
	change func(objects string)) {
	t.Helper()
	for _, x := range c.exchanges {
		if x.later {
			change(c.later)
		}
		x.must(t, c.port)
		x.aside(t, e, s.backends)
		explainer.compare(t, x, c.port)
	}
	for _, want := range c.problems {
		t.Errorf("problem not reported: %s", want)
	}
}

func findCase(cases []*conformanceCase, name string) *conformanceCase {
	for _, c := range cases {
		if c.name == name {
			return c
		}
	}
	return &conformanceCase{}
}

// missing returns an expected problem that is not reported, "" if all are. If Envoy refuses several
// resources at once, the problem is reported once the server has determined which resource is
// wrong.
func missing(cases []*conformanceCase, reported []discovery.Problem) string {
	for _, c := range cases {
		for _, want := range c.problems {
			if !slices.ContainsFunc(reported,
				func(p discovery.Problem) bool { return strings.Contains(p.String(), want) }) {
				return c.name + ": " + want
			}
		}
	}
	return ""
}

// expects reports whether the case expects a problem.
func (c *conformanceCase) expects(p discovery.Problem) bool {
	for i, want := range c.problems {
		if strings.Contains(p.String(), want) {
			c.problems = append(c.problems[:i], c.problems[i+1:]...)
			return true
		}
	}
	return false
}

func readCase(t *testing.T, path string, variables map[string]string, port,
	other int) *conformanceCase {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	c := &conformanceCase{name: strings.TrimSuffix(filepath.Base(path), ".txtar"), port: port}
	c.node = nodeFor(filepath.Base(filepath.Dir(path)), c.name)
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
		case "later.yaml":
			c.later = expand(f.Data)
		case "requests":
			c.exchanges = readExchanges(t, path, expand(f.Data))
		case "problems":
			c.problems = strings.FieldsFunc(strings.TrimSpace(string(f.Data)),
				func(r rune) bool { return r == '\n' })
		default:
			t.Fatalf("%s: unknown file %s", path, f.Name)
		}
	}
	return c
}

// nodeFor returns the kind of Envoy (see bootstrapOf) for a case in a directory.
func nodeFor(folder, name string) string {
	switch {
	case folder == "router", folder == "alone" && strings.HasPrefix(name, "router-"):
		return "router"
	case folder == "captured" && strings.HasPrefix(name, "tproxy"):
		// the case only tests that Envoy accepts the listener: no connections are captured
		return "TPROXY"
	case folder == "captured" && strings.HasPrefix(name, "ipv6"):
		return "REDIRECT6"
	case folder == "captured", folder == "dynamic" && strings.HasPrefix(name, "captured"):
		return "REDIRECT"
	}
	return "sidecar"
}

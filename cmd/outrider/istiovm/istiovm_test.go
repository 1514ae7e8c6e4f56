package istiovm

import (
	"flag"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/config"
)

var update = flag.Bool("update", false, "write the golden files")

var paths = Paths{Token: "/etc/outrider/istio/istio-token",
	Root: "/etc/outrider/istio/root-cert.pem"}

// TestConvert_Istioctl converts files that istioctl has written. The golden files contain all
// settings and notes, including settings that this version refuses.
func TestConvert_Istioctl(t *testing.T) {
	for _, name := range []string{"web", "bare"} {
		source, err := Read(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		c := source.convert(paths)
		got := strings.Join(append(c.lines(), c.notes...), "\n") + "\n"
		golden := filepath.Join("testdata", name+".golden")
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (-update writes it): -want +got:\n%s", golden, diff)
		}
		result, err := source.Convert(paths)
		if err != nil {
			t.Fatal(err)
		}
		if errs := config.CheckTOML(name, result.Config); len(errs) > 0 {
			t.Errorf("%s: %v", name, errs)
		}
	}
}

func TestConvert_CommentsOutWhatIsRefused(t *testing.T) {
	source, err := parse(map[string][]byte{
		"cluster.env": []byte("ISTIO_NAMESPACE=vm\nTRUST_DOMAIN='no domain'\nOTHER=1\n" +
			"ISTIO_INBOUND_PORTS=80,http\n"),
		"mesh.yaml": []byte("defaultConfig: {soon: 1, readinessProbe: {tcpSocket: {port: 80}}, " +
			"proxyStatsMatcher: {inclusionPrefixes: [http.], inclusionRegexps: [a+, '(']}}\n")})
	if err != nil {
		t.Fatal(err)
	}
	result, err := source.Convert(paths)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\n# trust_domain = \"no domain\"", "\nnamespace = \"vm\"",
		"# - node.trust_domain: \"no domain\" is not valid", "# - OTHER: has no equivalent",
		"\nstats_prefixes = [\"http.\"]", "\n# stats_regexps = [\"a+\", \"(\"]",
		"# - ISTIO_INBOUND_PORTS: cannot be read", "# - istio-token is missing",
		"this version does not know", "# - health: pilot-agent probes the node's first address"} {
		if !strings.Contains(result.Config, want) {
			t.Errorf("%q is missing in\n%s", want, result.Config)
		}
	}
}

func TestParseEnvironment(t *testing.T) {
	tests := []struct {
		name, text string
		want       map[string]string
		err        string
	}{
		{"quotes", "A='it'\"'\"'s'\nexport B=\"a \\\"b\\\" \\n\"\nC=x\\ y; D=", map[string]string{
			"A": "it's", "B": `a "b" \n`, "C": "x y", "D": ""}, ""},
		{"lines", "# A=1\n\nA='1\n2' # more\nB=2", map[string]string{"A": "1\n2", "B": "2"}, ""},
		{"expansion", "A=1\nB=$A\n", nil, "cluster.env:2: B: the value has shell syntax"},
		{"command", "A=`id`", nil, "cluster.env:1: A: the value has shell syntax"},
		{"open quote", "A='1", nil, "cluster.env:1: A: the value has shell syntax"},
		{"statement", "A=1\n\nif true; then\n", nil,
			"cluster.env:3: the line is not an assignment"},
	}
	for _, test := range tests {
		got := map[string]string{}
		err := parseEnvironment("cluster.env", test.text, got)
		if test.err != "" {
			if err == nil || !strings.HasPrefix(err.Error(), test.err) {
				t.Errorf("%s: error %v, want %s", test.name, err, test.err)
			}
		} else if err != nil || !maps.Equal(got, test.want) {
			t.Errorf("%s: %q, %v; want %q", test.name, got, err, test.want)
		}
	}
}

func TestRead_RefusesOtherDirectories(t *testing.T) {
	if _, err := Read(t.TempDir()); err == nil || !strings.Contains(err.Error(), "istioctl") {
		t.Errorf("error %v", err)
	}
}

// FuzzConvert checks that all files that can be parsed result in a valid configuration.
func FuzzConvert(f *testing.F) {
	for _, name := range []string{"web", "bare"} {
		environment, err := os.ReadFile(filepath.Join("testdata", name, "cluster.env"))
		if err != nil {
			f.Fatal(err)
		}
		mesh, err := os.ReadFile(filepath.Join("testdata", name, "mesh.yaml"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(environment, mesh)
	}
	f.Fuzz(func(t *testing.T, environment, mesh []byte) {
		source, err := parse(map[string][]byte{"cluster.env": environment, "mesh.yaml": mesh})
		if err != nil {
			return
		}
		result, err := source.Convert(paths)
		if err != nil {
			t.Fatal(err)
		}
		if errs := config.CheckTOML("fuzz", result.Config); len(errs) > 0 {
			t.Errorf("%v\n%s", errs, result.Config)
		}
	})
}

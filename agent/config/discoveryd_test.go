package config

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/scripts/parts"
)

func loadDiscoveryd(t *testing.T, files map[string]string) (*DiscoverydLoaded, string, error) {
	t.Helper()
	folder := write(t, files)
	loaded, err := LoadDiscoveryd(Options{ConfigDirectory: folder,
		Environment: func(string) string { return "" }})
	return loaded, folder, err
}

func TestDiscoveryd_Defaults(t *testing.T) {
	loaded, _, err := loadDiscoveryd(t, map[string]string{"discoveryd.toml": ""})
	if err != nil {
		t.Fatal(err)
	}
	c := loaded.Config
	if c.Listen.Plaintext != "127.0.0.1:15010" || c.StateDir != discoverydState ||
		len(c.Sources) != 1 || c.Sources[0].Name != "files" {
		t.Errorf("defaults: %+v", c)
	}
}

// A list of tables in a drop-in replaces the list of earlier files.
func TestDiscoveryd_ListsAndDropIns(t *testing.T) {
	loaded, folder, err := loadDiscoveryd(t, map[string]string{"discoveryd.toml": `
[push]
debounce_max = "5s"
[[source]]
type = "kubernetes"
kubeconfig = "k"
[[source]]
paths = ["m"]
`, "discoveryd.d/50-x.toml": `
[push]
debounce_after = "1s"
[[registry]]
type = "kubernetes"
[[registry]]
type = "consul"
datacenters = ["a", "b"]
[auth]
jwt_issuers = [{ issuer = "https://a", jwks_file = "/a" }, { issuer = "https://b", jwks_file = "b" }]
`, "discoveryd.d/60-y.toml": `
[[source]]
type = "kubernetes"
kubeconfig = "other"
`})
	if err != nil {
		t.Fatal(err)
	}
	c := loaded.Config
	var names []string
	for _, s := range append(c.Sources, c.Registries...) {
		names = append(names, s.Name+" "+strings.TrimPrefix(s.Kubeconfig, folder))
	}
	if diff := cmp.Diff([]string{"kubernetes /discoveryd.d/other",
		"kubernetes-2 /discoveryd.d/other", "consul "}, names); diff != "" {
		t.Errorf("sources (-want +got):\n%s", diff)
	}
	if len(c.Auth.JWTIssuers) != 2 ||
		c.Auth.JWTIssuers[1].JWKSFile != filepath.Join(folder, "discoveryd.d/b") {
		t.Errorf("issuers: %+v", c.Auth.JWTIssuers)
	}
	if c.Push.DebounceMax.String() != "5s" || c.Push.DebounceAfter.String() != "1s" {
		t.Errorf("push: %+v", c.Push)
	}
}

func TestDiscoveryd_Errors(t *testing.T) {
	for text, want := range map[string]string{
		"domian = \"a\"": ":1:1: domian: there is no such key; did you mean domain?",
		"[[source]]\n\n[[source]]\ntype = \"fils\"": ":4:1: source.2.type: \"fils\" is not valid; " +
			"did you mean \"files\"?",
		"[[source]]\nkubeconfig = \"x\"": ":2:1: source.1.kubeconfig: has no effect on type " +
			"\"files\"; remove it",
		"[[registry]]\naddress = \"x\"": ":1:1: registry.1: a registry needs a type",
		"[source]\ntype = \"files\"":    ":1:1: source: is a table, not a list of tables; write [[source]]",
		"[registration]\nenabled = true": ":2:1: registration.enabled: needs a source of type " +
			"kubernetes: registered workloads are written to its API server, and read from there; " +
			"add a [[source]] of type kubernetes",
		"[registration]\nenabled = true\nstore = \"kubernetes\"\n[[registry]]\ntype = \"kubernetes\"": ":3:1: " +
			"registration.store: needs a source of type kubernetes",
		"[registration]\nenabled = true\nstore = \"consul\"\n[[source]]\ntype = \"kubernetes\"": ":3:1: " +
			"registration.store: needs a registry of type consul: registered workloads are written " +
			"to its catalogue, and read from there; add a [[registry]] of type consul",
		"[[source]]\ntype = \"kubernetes\"\n[registration]\nenabled = true": ":4:1: registration.enabled: " +
			"workloads need an identity to register themselves, and listen.tls is off; set listen.tls",
		"[ca]\nenabled = true": ":2:1: ca.enabled: the authority serves on listen.tls only, " +
			"which is off; set listen.tls",
		"[listen]\ntls = \":1\"\n[tls]\ncert_file = \"c\"\nkey_file = \"k\"\n" +
			"[ca]\nenabled = true": ":7:1: ca.enabled: needs a certificate that signs, and its key; " +
			"set ca.cert_file and ca.key_file",
		"[listen]\ntls = \":15012\"": ":2:1: listen.tls: needs a certificate",
		"[auth]\njoin_not_before = \"yesterday\"": ":2:1: auth.join_not_before: \"yesterday\" is " +
			"not valid",
		"[auth]\njoin_not_before = \"2026-01-02T15:04:05Z\"": ":2:1: auth.join_not_before: has no " +
			"effect: join tokens are off; set auth.join_key_file, or remove it",
		"[[source]]\ntype = \"mcp\"":    ":1:1: source.1: type mcp needs an address",
		"[[source]]\ntype = \"memory\"": ":1:1: source.1: type memory needs the address of",
		"[[source]]\ntype = \"memory\"\nlisten = \":1\"\ntoken_file = \"t\"": ":3:1: source.1.listen: " +
			"the write API has no TLS: \":1\" is not only for this host; write a loopback address",
		"[[source]]\ntype = \"mcp\"\naddress = \"a.test:1\"\nkey_file = \"k\"": ":4:1: " +
			"source.1.key_file: cert_file and key_file belong together; set both or none",
		"[[source]]\n[[source]]\n":                 ":2:1: source.2: there is another source of type files",
		"[auth]\njwt_issuers = [{ issuer = \"\"}]": ":2:1: auth.jwt_issuers.1: needs issuer and jwks_file",
	} {
		_, folder, err := loadDiscoveryd(t, map[string]string{"discoveryd.toml": text})
		want = filepath.Join(folder, "discoveryd.toml") + want
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v\nwant %s", text, err, want)
		}
	}
}

// If a live key, a key that needs a restart and the sources have changed, a running server adopts
// only the new value of the live key.
func TestDiscoveryd_PendingKeysKeepTheirValues(t *testing.T) {
	load := func(text string) *Discoveryd {
		loaded, _, err := loadDiscoveryd(t, map[string]string{"discoveryd.toml": text})
		if err != nil {
			t.Fatal(err)
		}
		return loaded.Config
	}
	before := load("domain = \"a.test\"\n[push]\ndebounce_max = \"5s\"\n")
	next := load("domain = \"b.test\"\n[push]\ndebounce_max = \"6s\"\n[[source]]\npaths = [\"/x\"]\n")
	var changes []string
	for _, c := range CompareDiscoveryd(before, next) {
		changes = append(changes, c.Key+" "+string(c.Effect))
	}
	if diff := cmp.Diff([]string{"domain start", "push.debounce_max live",
		"source.1.paths start"}, changes); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	retained := RetainDiscoverydRestartKeys(before, next)
	if retained.Domain != "a.test" || retained.Push.DebounceMax.String() != "6s" ||
		retained.Sources[0] != before.Sources[0] {
		t.Errorf("retained %+v", retained)
	}
}

func TestDiscoveryd_ExampleIsWrittenFromTheDefinitions(t *testing.T) {
	parts.Golden(t, "../../etc/discoveryd.toml", discoverydDefaultsTOML(), *update)
	loaded, _, err := loadDiscoveryd(t,
		map[string]string{"discoveryd.toml": discoverydDefaultsTOML()})
	if err != nil {
		t.Fatal(err)
	}
	empty, _, err := loadDiscoveryd(t, map[string]string{"discoveryd.toml": ""})
	if err != nil {
		t.Fatal(err)
	}
	if loaded.Hash != empty.Hash {
		t.Errorf("the annotated file differs from the defaults: %v",
			CompareDiscoveryd(empty.Config, loaded.Config))
	}
}

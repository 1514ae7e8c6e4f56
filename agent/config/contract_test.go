package config

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	"github.com/google/go-cmp/cmp"
)

// contractKey is a key in testdata/contract.toml, a copy of the documented configuration.
type contractKey struct {
	text    string // default as spelled in the file
	comment string // comment without the mark of the effect
	effect  string // live, epoch, start; "": the line has none, the table's effect applies
}

var (
	tableLine   = regexp.MustCompile(`^#?\[([A-Za-z_.]+)\]\s*(?:#(.*))?$`)
	keyLine     = regexp.MustCompile(`^#?(\w+) = ("[^"]*"|\[[^\]]*\]|\S+)\s*(?:#(.*))?$`)
	commentLine = regexp.MustCompile(`^\s+#(.*)$`)
	effectMark  = regexp.MustCompile(`\[(epoch|live|start)\]`)
)

// readAnnotated reads the keys of an annotated file, including commented-out samples.
func readAnnotated(text string) map[string]*contractKey {
	keys := map[string]*contractKey{}
	var table, tableEffect string
	var last *contractKey
	for line := range strings.SplitSeq(text, "\n") {
		if m := tableLine.FindStringSubmatch(line); m != nil {
			table, last, tableEffect = m[1], nil, ""
			if mark := effectMark.FindStringSubmatch(m[2]); mark != nil {
				tableEffect = mark[1]
			}
		} else if m := keyLine.FindStringSubmatch(line); m != nil && table != "" {
			last = &contractKey{text: m[2], comment: m[3], effect: tableEffect}
			keys[table+"."+m[1]] = last
		} else if m := commentLine.FindStringSubmatch(line); m != nil && last != nil {
			last.comment += " " + m[1]
		} else {
			last = nil
		}
	}
	for _, k := range keys {
		if mark := effectMark.FindStringSubmatch(k.comment); mark != nil {
			k.effect = mark[1]
		}
		k.comment = strings.Join(strings.Fields(effectMark.ReplaceAllString(k.comment, "")), " ")
	}
	return keys
}

// differences lists the keys that the contract documents in another form than the definition, or
// with an example value instead of the default.
func differences() map[string]bool {
	return map[string]bool{
		"status.probe.NAME.http": true, "status.probe.NAME.tcp": true,
		"status.probe.NAME.grpc":    true,
		"status.probe.NAME.headers": true, // only the definition says which probes accept the key
		"health.http":               true, "health.tcp": true, "health.grpc": true,
		"health.exec": true, "health.unit": true,
	}
}

func TestDefinitionsAreTheContract(t *testing.T) {
	text, err := os.ReadFile("testdata/contract.toml")
	if err != nil {
		t.Fatal(err)
	}
	contract := readAnnotated(string(text))
	if len(contract) < 140 {
		t.Fatalf("read only %d keys of the contract", len(contract))
	}
	// The contract mentions the second of two identical tables only in a comment.
	for _, name := range []string{"mode", "ca_file", "cert_file", "key_file", "server_name",
		"tcp_keepalive"} {
		contract["telemetry.access_log_service_tls."+name] = contract["telemetry.metrics_service_tls."+name]
	}
	ours := readAnnotated(DefaultsTOML())
	c := defaults()
	c.Status.Probes["NAME"] = Probe{}
	defined := map[string]key{}
	for _, table := range tables(c) {
		for _, k := range table.keys {
			defined[table.name+"."+k.name] = k
		}
	}
	for name, want := range contract {
		k, ok := defined[name]
		if !ok {
			t.Errorf("%s is in the contract but not defined", name)
			continue
		}
		if string(k.effect) != want.effect {
			t.Errorf("%s: effect %s, the contract says %q", name, k.effect, want.effect)
		}
		if differences()[name] {
			continue
		}
		if got := k.defaultText(); got != want.text {
			t.Errorf("%s: default %s, the contract says %s", name, got, want.text)
		}
		if strings.HasSuffix(name, "_tls.mode") && want.comment == "" {
			t.Errorf("%s has lost its comment", name)
		}
		if diff := cmp.Diff(want.comment, ours[name].comment); diff != "" {
			t.Errorf("%s: comment is not the contract's: %s", name, diff)
		}
	}
	for name := range defined {
		if contract[name] == nil && !differences()[name] {
			t.Errorf("%s is defined but not in the contract", name)
		}
	}
}

// The generated file, when loaded, yields the defaults of the definitions.
func TestDefaultsLoadAsDefaults(t *testing.T) {
	environment := func(string) string { return "" }
	layout := layout{main: "/etc/outrider/outrider.toml", runtime: defaultRuntime,
		state: defaultState}
	written, errs := build([]source{{layout.main, DefaultsTOML()}}, true, layout,
		Options{Environment: environment})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	empty, errs := build([]source{{layout.main, ""}}, true, layout, Options{Environment: environment})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	if diff := cmp.Diff(empty.Config, written.Config); diff != "" {
		t.Errorf("-empty +written:\n%s", diff)
	}
	if len(empty.Warnings)+len(written.Warnings) > 0 {
		t.Errorf("warnings: %v %v", empty.Warnings, written.Warnings)
	}
	if changes := Compare(empty.Config, written.Config); len(changes) > 0 {
		t.Errorf("changes: %v", changes)
	}
	if empty.Hash != written.Hash || len(empty.Hash) != 64 {
		t.Errorf("hashes %s and %s", empty.Hash, written.Hash)
	}
}

// Every default passes its checks and round-trips through TOML.
func TestDefaultsAreValid(t *testing.T) {
	c := defaults()
	c.Status.Probes["NAME"] = Probe{}
	for _, table := range tables(c) {
		for _, k := range table.keys {
			k.reset()
			if p := first(k.get(), k.checks); p != nil {
				t.Errorf("%s.%s: the default is refused: %s", table.name, k.name, p.message)
			}
			var raw map[string]any
			if _, err := toml.Decode("value = "+k.defaultText(), &raw); err != nil {
				t.Fatalf("%s.%s: %v", table.name, k.name, err)
			}
			value, p := convert(k.get(), raw["value"])
			if p != nil {
				t.Fatalf("%s.%s: %s", table.name, k.name, p.message)
			}
			if render(value) != render(k.value) {
				t.Errorf("%s.%s: %s is read as %v, defined as %v", table.name, k.name,
					k.defaultText(), value, k.value)
			}
		}
	}
}

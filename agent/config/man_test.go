package config

import (
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/packaging/man"
	"outrider.org/outrider/scripts/parts"
)

// TestManPage checks that outrider.toml(5) and discoveryd.toml(5) match the definitions.
func TestManPage(t *testing.T) {
	parts.Golden(t, "../../packaging/man/outrider.toml.5", manPage(), *update)
	parts.Golden(t, "../../packaging/man/discoveryd.toml.5", discoverydManPage(), *update)
}

func discoverydManPage() string {
	p := man.New("discoveryd.toml", 5, "configuration of outrider-discoveryd")
	p.Section("SYNOPSIS")
	p.Text("`/etc/outrider/discoveryd.toml`, `/etc/outrider/discoveryd.d/*.toml`")
	p.Section("DESCRIPTION")
	p.Text(
		`The configuration of outrider-discoveryd(8) is TOML: tables of keys. What it says is checked as a whole by
"outrider-discoveryd --check", and before each start and reload.`)
	p.Text("The rules of outrider.toml(5) apply:")
	for _, rule := range rules(header) {
		if !strings.Contains(rule, "conf.d") && !strings.Contains(rule, "[epoch]") {
			p.Term(`\(bu`, strings.ReplaceAll(rule, "running agent", "running server"))
		}
	}
	p.Text(`Drop-ins are merged over the file in name order: a table merges, a list and an array of tables replace those
of the files before. [[source]] is where configuration comes from, in order: of two objects with one name the earlier
source's counts, and an access policy of the later one that differs denies what it selects.
[[registry]] is where services and endpoints come from, beside ServiceEntry and WorkloadEntry of
the sources.`)
	for _, t := range annotatedDiscoveryd() {
		describeTable(p, t)
	}
	p.Section("EXAMPLE")
	p.Example(discoverydExample)
	p.Section("FILES")
	p.Term(man.Italic("/etc/outrider/discoveryd.toml"),
		"The package installs it with comments alone.")
	p.Term(man.Italic("/usr/share/doc/outrider-discoveryd/discoveryd.toml"),
		"All keys with their defaults and their explanation.")
	p.SeeAlso("outrider-discoveryd(8)", "systemd.exec(5)")
	return p.String()
}

// discoverydExample is the example in the man page of outrider-discoveryd; TestManExampleIsValid
// validates it.
const discoverydExample = `# /etc/outrider/discoveryd.toml
[push]
debounce_after = "50ms"

[[source]]
paths = ["/etc/outrider/mesh.d"]

[[registry]]
type = "consul"
address = "http://127.0.0.1:8500"
token_file = "credential:consul"
`

func manPage() string {
	p := man.New("outrider.toml", 5, "configuration of outriderd")
	p.Section("SYNOPSIS")
	p.Text("`/etc/outrider/outrider.toml`, `/etc/outrider/conf.d/*.toml`")
	p.Text(
		"`/etc/outrider/`NAME`.toml`, `/etc/outrider/`NAME`.conf.d/*.toml` for the instance NAME")
	p.Section("DESCRIPTION")
	p.Text(
		`The configuration of outriderd(8) is TOML: tables of keys. What it says is checked as a whole by "outrider config check",
"outriderd --check", and before each start and reload.`)
	for _, rule := range rules(header) {
		p.Term(`\(bu`, rule)
	}
	p.Text(
		`"outrider config defaults" prints a file of all keys with their defaults and their explanation, "outrider config show"
what is in force and where each value comes from, "outrider config diff" what a reload would change.`)

	c := defaults()
	c.Status.Probes["NAME"] = Probe{}
	for _, t := range tables(c) {
		describeTable(p, t)
	}
	p.Section("EXAMPLE")
	p.Example(example)
	p.Section("FILES")
	p.Term(man.Italic("/etc/outrider/outrider.toml"),
		"The package installs it with comments alone.")
	p.Term(man.Italic("/usr/share/doc/outrider/outrider.toml"),
		"All keys with their defaults and their explanation.")
	p.SeeAlso("outrider(1)", "outrider-config-check(1)", "outriderd(8)", "systemd.exec(5)")
	return p.String()
}

// example is the example in the man page of outriderd; TestManExampleIsValid validates it.
const example = `# /etc/outrider/conf.d/50-edge.toml
[node]
type = "router"
id = "edge-1"

[envoy]
concurrency = 2
termination_drain_duration = "15s"

[discovery]
files = ["/etc/outrider/mesh.d"]
`

func TestManExampleIsValid(t *testing.T) {
	folder := write(t, map[string]string{"outrider.toml": example})
	if _, err := Load(Options{Path: filepath.Join(folder, "outrider.toml"),
		Environment: func(string) string { return "" }}); err != nil {
		t.Error(err)
	}
	folder = write(t, map[string]string{"discoveryd.toml": discoverydExample})
	if _, err := LoadDiscoveryd(Options{ConfigDirectory: folder, CheckOnly: true,
		Environment: func(string) string { return "" }}); err != nil {
		t.Error(err)
	}
}

var rule = regexp.MustCompile(`(?m)^# - ((?:.+\n)(?:#   .+\n)*)`)

// rules returns the items of the list in the header of an annotated file.
func rules(header string) []string {
	var all []string
	for _, found := range rule.FindAllStringSubmatch(header, -1) {
		all = append(all, strings.ReplaceAll(strings.TrimSpace(found[1]), "\n#   ", "\n"))
	}
	return all
}

func describeTable(p *man.Page, t table) {
	switch {
	case t.list:
		p.Section("[[" + t.name + "]]")
	case t.name == "":
		p.Section("KEYS OUTSIDE TABLES")
	default:
		p.Section("[" + t.name + "]")
	}
	if t.doc != "" {
		p.Text(t.doc)
	}
	for _, k := range t.keys {
		describeKey(p, k)
	}
}

func describeKey(p *man.Page, k key) {
	p.Term(man.Bold(k.name)+" = "+man.Escape(k.defaultText()), kind(k)+", "+effects[k.effect]+".")
	if k.doc != "" {
		p.TermParagraph(k.doc)
	}
	if len(k.before) > 0 {
		p.TermParagraph(strings.Join(k.before, "\n"))
	}
	if k.role != "" {
		p.TermParagraph("In Istio: `" + k.role + "`.")
	}
}

var effects = map[Effect]string{
	Live:  "a change is applied in place",
	Epoch: "a change starts a new epoch of Envoy",
	Start: "a change waits for the next start",
}

// kind returns the type of a key in words.
func kind(k key) string {
	var name string
	switch k.field.(type) {
	case *string:
		name = map[form]string{plain: "String", path: "Path", program: "Program"}[k.form]
		if k.credentialAllowed {
			name += ` or "credential:NAME"`
		}
	case *bool:
		name = "Boolean"
	case *int:
		name = "Integer"
	case *float64:
		name = "Number"
	case *time.Duration:
		name = "Duration"
	case *[]string:
		name = map[form]string{plain: "List of strings", path: "List of paths"}[k.form]
	case *Addresses:
		name = "String or list of strings"
	case *[]int:
		name = "List of integers"
	case *Ports:
		name = "List of ports"
	case *map[string]string:
		name = "Table of strings"
	case *map[string]any:
		name = "Table"
	}
	if name == "" {
		panic("no name for the type " + reflect.TypeOf(k.field).String())
	}
	return name
}

package config

import (
	"iter"
	"path/filepath"
	"reflect"
	"time"
)

// Effect is the effect of a changed key on a running agent.
type Effect string

// The effects, as in etc/outrider.toml.
const (
	Live  Effect = "live"  // applied in place
	Epoch Effect = "epoch" // a new Envoy epoch
	Start Effect = "start" // takes effect at the next start of the agent; pending until then
)

// table defines a table of the file and binds it to the Config that stores its values. Decoding,
// defaults, checks, effects, suggestions and the annotated file (etc/outrider.toml) are all derived
// from these definitions.
type table struct {
	name string // dotted TOML key
	doc  string // documentation, one paragraph
	// marked means that doc states the effect of the first key. The annotated file then states the
	// effect of a key only if it differs from that of the first.
	marked bool
	// sample means that the table is commented out in the annotated file. A file may have any
	// number of sample tables.
	sample bool
	// list means that a file may have any number of these tables, written [[name]].
	list bool
	keys []key
}

// keyName returns the dotted name of a key. The keys of the table "" are at the top of the file.
func (t table) keyName(k key) string {
	if t.name == "" {
		return k.name
	}
	return t.name + "." + k.name
}

// key defines a key.
type key struct {
	name    string
	field   any    // pointer to a field of Config; its type is the key's type
	value   any    // default, of the field's type
	spelled string // preferred spelling of the default
	effect  Effect
	doc     string   // documentation, one paragraph
	role    string   // equivalent pilot-agent flag or variable
	before  []string // comment lines above the key in the annotated file

	form    form
	checks  []check
	derived func() string // computes the value that replaces an empty one

	sample bool // commented out in the annotated file

	credentialAllowed bool // accepts "credential:NAME"
	// conceal returns the public part of a value; nil: the whole value is public. If a table has
	// conceal, all its values are redacted.
	conceal func(value any) any
}

// form selects how Load resolves a string, or the strings of a list.
type form int

const (
	plain   form = iota
	path         // relative to the directory of the file that sets it
	program      // like path, but a name without a slash is looked up in $PATH later
)

// check returns the problem with a value of the key's type, or nil.
type check func(value any) *problem

// setting defines a key. T must be a type that convert supports.
func setting[T any](name string, field *T, value T, effect Effect, doc string) key {
	return key{name: name, field: field, value: value, effect: effect, doc: doc}
}

// duration defines a key of type duration; spelled is its default in TOML. An invalid default
// becomes 0, which the test of the defaults detects.
func duration(name string, field *time.Duration, spelled string, effect Effect, doc string) key {
	value, _ := time.ParseDuration(spelled)
	k := setting(name, field, value, effect, doc)
	k.spelled = quote(spelled)
	return k
}

// plays sets the pilot-agent flag or variable that the key corresponds to.
func (k key) plays(role string) key { k.role = role; return k }

// must adds checks.
func (k key) must(checks ...check) key { k.checks = append(k.checks, checks...); return k }

// path marks the value as a path.
func (k key) path() key { k.form = path; return k }

// program marks the value as the path or name of a program.
func (k key) program() key { k.form = program; return k }

// file marks the value as the path of a file to read, or a systemd credential.
func (k key) file() key { k.form, k.credentialAllowed = path, true; return k }

// or sets the function that computes a replacement for an empty value.
func (k key) or(derived func() string) key { k.derived = derived; return k }

// conceals sets the function that removes secrets from a value.
func (k key) conceals(how func(value any) any) key { k.conceal = how; return k }

// below adds comment lines above the key in the annotated file.
func (k key) below(lines ...string) key { k.before = lines; return k }

// get returns the value of the field.
func (k key) get() any      { return reflect.ValueOf(k.field).Elem().Interface() }
func (k key) set(value any) { reflect.ValueOf(k.field).Elem().Set(reflect.ValueOf(value)) }

// reset sets the field to its default.
func (k key) reset() { k.set(k.value) }

// isDefault reports whether the field has its default value. Nil and empty lists and tables are
// equal.
func (k key) isDefault() bool { return render(k.get()) == render(k.value) }

// tables returns all definitions, bound to c, in the order of the file, with one table for each
// probe of c.
func tables(c *Config) []table {
	all := []table{
		pathsTable(&c.Paths), nodeTable(&c.Node),
		envoyTable(c), reloadTable(&c.Reload),
		discoveryTable(&c.Discovery), identityTable(&c.Identity),
		sdsTable(c), xdsTable(c),
		statusTable(&c.Status),
	}
	for _, name := range sortedKeys(c.Status.Probes) {
		probe := c.Status.Probes[name]
		all = append(all, probeTable(name, &probe))
	}
	return append(all,
		healthTable(&c.Health), dnsTable(&c.DNS), captureTable(&c.Capture), stsTable(&c.STS),
		telemetryTable(&c.Telemetry),
		tlsTable("metrics_service_tls", "the tlsSettings of metrics_service; files are watched",
			&c.Telemetry.MetricsServiceTLS),
		tlsTable("access_log_service_tls",
			"the tlsSettings of access_log_service; files are watched",
			&c.Telemetry.AccessLogServiceTLS),
		tracingTable(&c.Tracing), busTable(&c.Bus), logTable(&c.Log))
}

// settings returns the keys of all tables with their dotted names, in the order of the file.
func settings(c *Config) iter.Seq2[string, key] { return settingsOf(tables(c)) }

func settingsOf(tables []table) iter.Seq2[string, key] {
	return func(yield func(string, key) bool) {
		for _, t := range tables {
			for _, k := range t.keys {
				if !yield(t.keyName(k), k) {
					return
				}
			}
		}
	}
}

// probesTable is the name of the table that holds one table per probe.
const probesTable = "status.probe"

// defaults returns a Config with all defaults, without derived values.
func defaults() *Config {
	c := &Config{}
	for _, k := range settings(c) {
		k.reset()
	}
	c.Status.Probes = map[string]Probe{}
	return c
}

// defaultsWithProbe is defaults with a probe NAME, so that the keys of probes are included.
func defaultsWithProbe() *Config {
	c := defaults()
	c.Status.Probes["NAME"] = Probe{}
	return c
}

// envoyFolder returns a function that returns the default path of a file in Envoy's directory.
func envoyFolder(c *Config, name string) func() string {
	return func() string { return filepath.Join(c.Paths.RuntimeDir, "envoy", name) }
}

package config

import (
	"path/filepath"
	"reflect"
	"time"
)

// Effect is what a change of a key does to a running agent.
type Effect int

// The effects, the smallest first.
const (
	Live  Effect = iota // applied in place
	Epoch               // a new Envoy epoch
	Start               // only at the next start of the agent: pending until then
)

// String is the word that marks the effect in etc/outrider.toml.
func (e Effect) String() string {
	return [...]string{"live", "epoch", "start"}[e]
}

// table defines a table of the file, bound to the Config whose fields hold its values. The definitions are the one source
// of everything that is known of a key: decoding, defaults, checks, effects, the annotated file, suggestions.
type table struct {
	name   string // dotted
	doc    string // one paragraph for people
	marked bool   // the doc tells the effect of all keys, so the keys themselves do not
	sample bool   // shown commented out in the annotated file: there may be none or several of it
	keys   []key
}

// key defines a key.
type key struct {
	name    string
	field   any    // pointer to the field of a Config; its type is the key's type
	value   any    // default, of the field's type
	spelled string // the default as people write it, where there are several ways
	effect  Effect
	doc     string   // what it does, one paragraph for people
	role    string   // the pilot-agent flag or variable whose role it plays
	before  []string // lines of explanation above it in the annotated file

	form    form
	checks  []check
	derived func() string // the value that an empty one stands for

	capability        capability            // what a value other than the default needs
	valueCapability   map[string]capability // what a single value needs
	credentialAllowed bool                  // "credential:NAME" may stand for the file
	conceal           func(value any) any   // what of a value everyone may see; nil: all. Of a table of values none is.
}

// form says how a string (or each of a list) is made final by Load.
type form int

const (
	plain   form = iota
	path         // relative ones start at the folder of the file that says them
	program      // as path, but a name without a slash is left for $PATH
)

// check tells what is wrong with a value of the key's type, nil if nothing is.
type check func(value any) *problem

// setting defines a key. The field is of one of the types that convert knows.
func setting[T any](name string, field *T, value T, effect Effect, doc string) key {
	return key{name: name, field: field, value: value, effect: effect, doc: doc}
}

// duration defines a key that is a duration; its default is given as the file spells it. A default that is none is a
// mistake in the definitions and becomes 0, which the test of the defaults shows.
func duration(name string, field *time.Duration, spelled string, effect Effect, doc string) key {
	value, _ := time.ParseDuration(spelled)
	k := setting(name, field, value, effect, doc)
	k.spelled = quote(spelled)
	return k
}

// plays names the pilot-agent flag or variable whose role the key plays.
func (k key) plays(role string) key { k.role = role; return k }

// must adds checks.
func (k key) must(checks ...check) key { k.checks = append(k.checks, checks...); return k }

// path makes the value a path.
func (k key) path() key { k.form = path; return k }

// program makes the value the path or name of a program.
func (k key) program() key { k.form = program; return k }

// file makes the value a file that is read, which may be a systemd credential.
func (k key) file() key { k.form, k.credentialAllowed = path, true; return k }

// or tells what an empty value stands for.
func (k key) or(derived func() string) key { k.derived = derived; return k }

// needs names the capability without which only the default is accepted.
func (k key) needs(c capability) key { k.capability = c; return k }

// valueNeeds names the capability without which one value is refused.
func (k key) valueNeeds(value string, c capability) key {
	needs := map[string]capability{value: c}
	for v, c := range k.valueCapability {
		needs[v] = c
	}
	k.valueCapability = needs
	return k
}

// conceals hides what may be a secret of a value from those who may not read the file.
func (k key) conceals(how func(value any) any) key { k.conceal = how; return k }

// below puts lines of explanation above the key in the annotated file.
func (k key) below(lines ...string) key { k.before = lines; return k }

// get returns the value of the field, set changes it.
func (k key) get() any      { return reflect.ValueOf(k.field).Elem().Interface() }
func (k key) set(value any) { reflect.ValueOf(k.field).Elem().Set(reflect.ValueOf(value)) }

// reset sets the default. Maps and lists get one of their own.
func (k key) reset() {
	switch value := k.value.(type) {
	case map[string]string:
		k.set(map[string]string{})
	case map[string]any:
		k.set(map[string]any{})
	case []string:
		k.set(append([]string(nil), value...))
	case []int:
		k.set(append([]int(nil), value...))
	default:
		k.set(value)
	}
}

// isDefault tells whether the field has its default value.
func (k key) isDefault() bool { return equal(k.get(), k.value) }

// tables returns all definitions, bound to c, in the order of the file. The probes are those that c has.
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
		tlsTable("metrics_service_tls", "the tlsSettings of metrics_service; files are watched", &c.Telemetry.MetricsServiceTLS),
		tlsTable("access_log_service_tls", "the tlsSettings of access_log_service; files are watched", &c.Telemetry.AccessLogServiceTLS),
		tracingTable(&c.Tracing), busTable(&c.Bus), logTable(&c.Log))
}

// probesTable is the table that holds the probes, one table each.
const probesTable = "status.probe"

// defaults returns a Config of the defaults, nothing derived yet.
func defaults() *Config {
	c := &Config{}
	for _, t := range tables(c) {
		for _, k := range t.keys {
			k.reset()
		}
	}
	c.Status.Probes = map[string]Probe{}
	return c
}

// envoyFolder is where Envoy's files and sockets are by default.
func envoyFolder(c *Config, name string) func() string {
	return func() string { return filepath.Join(c.Paths.RuntimeDir, "envoy", name) }
}

// Package config turns TOML into a typed Config: the main file and its drop-ins are merged key by key, everything that is
// wrong is reported at once with file, line, key and cure, and it is known where each value came from and what a change of
// it does. Beside the files named in Options and the host's addresses (Node.Resolve) it looks at nothing.
package config

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
)

// Options say which configuration to load, and where it is going to run.
type Options struct {
	// Path is the main file; drop-ins are in conf.d beside it. "" = Directory/outrider.toml, or what Instance says.
	Path string
	// Instance reads Directory/NAME.toml and Directory/NAME.conf.d and gives it folders of its own. With Path it is only
	// checked.
	Instance string
	// Directory of the configuration; "" = /etc/outrider.
	Directory string
	// Environment looks up variables ($RUNTIME_DIRECTORY, $STATE_DIRECTORY, $CREDENTIALS_DIRECTORY); nil = os.Getenv.
	Environment func(string) string
	// InUnit is set if the agent runs as a unit of systemd, where some keys are the unit's to decide.
	InUnit bool
	// CheckOnly is set by whoever only looks at a configuration that runs elsewhere: credentials need not be there.
	CheckOnly bool
}

// Loaded is a valid configuration and how it came about.
type Loaded struct {
	Config   *Config
	Files    []string            // that were read: the main file, then the drop-ins in the order of merging
	Dirs     []string            // folders of drop-ins, which may not exist yet: watch them too
	Sources  map[string]Position // dotted key → where its value was said; keys that no file names are not in it
	Warnings Errors              // what is allowed but hardly meant
	Hash     string              // of the effective values: equal configurations have equal hashes

	derived     map[string]string // dotted key → what its value follows from, if not from a file
	credentials string            // systemd's folder of them; "" if there is none
}

// Load reads and checks a configuration. Its error is Errors: everything that is wrong.
func Load(options Options) (*Loaded, error) {
	if options.Environment == nil {
		options.Environment = os.Getenv
	}
	place, p := options.place()
	if p != nil {
		return nil, Errors{p}
	}
	sources, errs := readSources(place)
	loaded, more := build(sources, len(errs) == 0, place, options)
	errs = append(errs, more...)
	if len(errs) > 0 {
		errs.sort(loaded.Files)
		return nil, errs
	}
	return loaded, nil
}

// build makes a configuration of what was read; complete says that this is all there is. It returns what it could make
// even if there are errors.
func build(sources []source, complete bool, place place, options Options) (*Loaded, Errors) {
	c := defaults()
	if place.meshFolder != "" {
		c.Discovery.Files = []string{place.meshFolder}
	}
	d := newDecoder(c, credentials{options.Environment("CREDENTIALS_DIRECTORY"), options.CheckOnly})
	loaded := &Loaded{Config: c, Dirs: []string{place.dropIns}, Sources: d.positions, derived: map[string]string{}}
	loaded.credentials = options.Environment("CREDENTIALS_DIRECTORY")
	for _, s := range sources {
		loaded.Files = append(loaded.Files, s.path)
		d.file(s)
	}
	loaded.resolve(place, options)

	x := &crossCheck{Config: c, options: options, positions: d.positions, fallback: Position{File: place.main},
		failed: d.failed, complete: complete && !d.broken}
	x.all()
	x.warnings.sort(loaded.Files)
	loaded.Warnings = x.warnings
	loaded.Hash = hash(c)
	return loaded, append(d.errors, x.errors...)
}

// resolve fills in what follows from elsewhere: systemd's variables, the instance, other keys.
func (l *Loaded) resolve(place place, options Options) {
	if place.meshFolder != "" && l.Sources["discovery.files"] == (Position{}) {
		l.derived["discovery.files"] = "the instance"
	}
	for _, folder := range []struct {
		key, variable, fallback string
		value                   *string
	}{
		{"paths.runtime_dir", "RUNTIME_DIRECTORY", place.runtime, &l.Config.Paths.RuntimeDir},
		{"paths.state_dir", "STATE_DIRECTORY", place.state, &l.Config.Paths.StateDir},
	} {
		if *folder.value != "" {
			continue
		}
		*folder.value, l.derived[folder.key] = folder.fallback, "default"
		// systemd lists all folders of a unit that has several; ours is the first.
		if given, _, _ := strings.Cut(options.Environment(folder.variable), ":"); filepath.IsAbs(given) {
			*folder.value, l.derived[folder.key] = filepath.Clean(given), "$"+folder.variable
		}
	}
	for _, t := range tables(l.Config) {
		for _, k := range t.keys {
			if k.derived != nil && k.get() == "" {
				k.set(k.derived())
				l.derived[t.name+"."+k.name] = "paths.runtime_dir"
			}
		}
	}
}

// hash is the SHA-256 of all values, the defaults too.
func hash(c *Config) string {
	h := sha256.New()
	for _, v := range values(c) {
		h.Write([]byte(v.key + " = " + v.text + "\n"))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Package config loads the TOML configuration of outriderd into a typed Config.
//
// Load merges the main file and its drop-ins key by key. It reports all errors at once, each with
// file, line, key and fix. Loaded records the source of each value, and Compare returns the effect
// of each change on a running agent. The package reads only the files that Options select and, in
// Node.WithHostDefaults, the host's name and addresses.
package config

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
)

// Options select the configuration to load and describe where it will run.
type Options struct {
	// Path is the main file; its drop-ins are in conf.d beside it. If Path is empty, Instance
	// selects the file, or ConfigDirectory/outrider.toml is used.
	Path string
	// Instance selects ConfigDirectory/NAME.toml and ConfigDirectory/NAME.conf.d, and directories
	// of its own for runtime, state and mesh files. If Path is set, only the name is validated.
	Instance string
	// ConfigDirectory holds the configuration; "" = /etc/outrider.
	ConfigDirectory string
	// Environment looks up variables ($RUNTIME_DIRECTORY, $STATE_DIRECTORY,
	// $CREDENTIALS_DIRECTORY); nil = os.Getenv.
	Environment func(string) string
	// RunsInUnit reports whether the agent runs as a systemd unit. There, the unit decides some
	// keys, such as envoy.user.
	RunsInUnit bool
	// CheckOnly is set where the configuration is inspected but not run. References to credentials
	// are not resolved.
	CheckOnly bool
	// UnreadableReason returns why this process may not read a path, and the fix: "user a cannot
	// read /x: chgrp a /x". It returns "" if the reason is unknown. nil: no reasons are known.
	UnreadableReason func(path string) string
}

// Loaded is a valid configuration with the source of each value.
type Loaded struct {
	Config *Config
	// Files lists the files that were read: the main file, then the drop-ins in merge order.
	Files []string
	Dirs  []string // drop-in directories to watch; they may not exist yet
	// Positions maps dotted keys to the position of their value. Keys that no file sets are absent.
	Positions map[string]Position
	Warnings  Errors // valid settings that are probably mistakes
	Hash      string // SHA-256 of the effective values; equal configurations have equal hashes

	derived     map[string]string // origins of values that no file sets, by dotted key
	credentials string            // $CREDENTIALS_DIRECTORY, or ""
}

// Load reads and checks a configuration. A non-nil error is of type Errors and lists all problems.
func Load(options Options) (*Loaded, error) {
	if options.Environment == nil {
		options.Environment = os.Getenv
	}
	layout, p := options.layout()
	if p != nil {
		return nil, Errors{p}
	}
	sources, errs := readSources(layout, options.UnreadableReason)
	loaded, more := build(sources, len(errs) == 0, layout, options)
	errs = append(errs, more...)
	if len(errs) > 0 {
		errs.sort(loaded.Files)
		return nil, errs
	}
	return loaded, nil
}

// CheckTOML checks the text of a file as if it were the whole configuration. It reads no file.
func CheckTOML(name, text string) Errors {
	_, errs := build([]source{{name, text}}, true, layout{main: name},
		Options{CheckOnly: true, Environment: func(string) string { return "" }})
	return errs
}

// build decodes and checks sources. complete reports whether all files were read; otherwise checks
// across keys are skipped. The result is non-nil even if there are errors.
func build(sources []source, complete bool, layout layout, options Options) (*Loaded, Errors) {
	c := defaults()
	if layout.meshFolder != "" {
		c.Discovery.Files = []string{layout.meshFolder}
	}
	d := newDecoder(tables(c),
		credentials{options.Environment("CREDENTIALS_DIRECTORY"), options.CheckOnly})
	d.known[probesTable] = true
	loaded := &Loaded{Config: c, Dirs: []string{layout.dropIns}, Positions: d.positions,
		derived: map[string]string{}}
	loaded.credentials = options.Environment("CREDENTIALS_DIRECTORY")
	for _, s := range sources {
		loaded.Files = append(loaded.Files, s.path)
		d.file(s)
	}
	for name, probe := range d.probes {
		c.Status.Probes[name] = *probe
	}
	loaded.resolve(layout, options)

	x := &crossCheck{Config: c, options: options, complete: complete && !d.broken,
		keyCheck: keyCheck{positions: d.positions, fallback: Position{File: layout.main},
			failed: d.failed}}
	x.all()
	x.warnings.sort(loaded.Files)
	loaded.Warnings = x.warnings
	loaded.Hash = hash(tables(c))
	return loaded, append(d.errors, x.errors...)
}

// resolve fills in defaults that depend on systemd's variables, the instance or other keys.
func (l *Loaded) resolve(layout layout, options Options) {
	if layout.meshFolder != "" && l.Positions["discovery.files"] == (Position{}) {
		l.derived["discovery.files"] = "the instance"
	}
	for _, folder := range []struct {
		key, variable, fallback string
		value                   *string
	}{
		{"paths.runtime_dir", "RUNTIME_DIRECTORY", layout.runtime, &l.Config.Paths.RuntimeDir},
		{"paths.state_dir", "STATE_DIRECTORY", layout.state, &l.Config.Paths.StateDir},
	} {
		if *folder.value != "" {
			continue
		}
		*folder.value, l.derived[folder.key] = folder.fallback, "default"
		if first := firstDirectory(options.Environment(folder.variable)); first != "" {
			*folder.value, l.derived[folder.key] = first, "$"+folder.variable
		}
	}
	for name, k := range settings(l.Config) {
		if k.derived != nil && k.get() == "" {
			k.set(k.derived())
			l.derived[name] = "paths.runtime_dir"
		}
	}
}

// firstDirectory returns the first of the colon-separated directories in a variable that systemd
// sets, or "".
func firstDirectory(list string) string {
	first, _, _ := strings.Cut(list, ":")
	if !filepath.IsAbs(first) {
		return ""
	}
	return filepath.Clean(first)
}

// hash returns the hexadecimal SHA-256 of all values, including defaults.
func hash(tables []table) string {
	h := sha256.New()
	for _, v := range values(tables) {
		h.Write([]byte(v.key + " = " + v.text + "\n"))
	}
	return hex.EncodeToString(h.Sum(nil))
}

package config

import (
	"strings"
	"unicode/utf8"
)

// Columns of the annotated file (the generated example of a configuration file), and the maximum
// widths of its lines.
const (
	commentColumn = 34
	roleColumn    = 82
	effectColumn  = 109
	lineWidth     = 118 // of a line with documentation only
	marksWidth    = 130 // of a line with role and effect
)

// header is the beginning of the annotated file.
const header = `# /etc/outrider/outrider.toml: the configuration of outriderd, with all keys and their defaults.
#
# Rules
# - Every key is optional; the value shown is the default. An empty file is a valid configuration.
# - /etc/outrider/conf.d/*.toml are merged over this file in name order, key by key (a table merges, a list replaces).
# - An unknown key, a wrong type or a value out of range is an error that names file, line, key and what is allowed.
#   Nothing starts or reloads on an invalid configuration; a running agent keeps the last good one and says so.
# - Durations are strings such as "45s". Sizes are integers in bytes unless the key says otherwise.
# - A relative path starts at the folder of the file that says it.
# - A secret is never written inline: keys that end in _file name a file, and "credential:NAME" names a systemd
#   credential ($CREDENTIALS_DIRECTORY/NAME).
# - After each key: the pilot-agent flag or variable whose role it plays, and what a change of it does:
#   [epoch] a new Envoy epoch (hot restart), [live] applied in place, [start] only at the next start (the reload
#   reports it as pending instead of ignoring it).
`

// DefaultsTOML returns the annotated file with all keys and their defaults: etc/outrider.toml.
//
//go:generate go test -run TestExampleIsWrittenFromTheDefinitions -update .
func DefaultsTOML() string {
	return annotatedFile(header, tables(defaultsWithProbe()))
}

// annotatedFile returns a file with all keys of tables.
func annotatedFile(header string, tables []table) string {
	var b strings.Builder
	b.WriteString(header)
	for _, t := range tables {
		prefix, heading := "", "["+t.name+"]"
		if t.sample {
			prefix = "#"
		}
		if t.list {
			heading = "[" + heading + "]"
		}
		b.WriteByte('\n')
		if t.name != "" {
			annotated(&b, prefix+heading, t.doc, "", "")
		}
		for _, k := range t.keys {
			prefix := prefix
			if k.sample {
				prefix = "#"
			}
			for _, line := range k.before {
				b.WriteString("# " + line + "\n")
			}
			effect := "[" + string(k.effect) + "]"
			if t.marked && k.effect == t.keys[0].effect {
				effect = ""
			}
			annotated(&b, prefix+k.name+" = "+k.defaultText(), k.doc, k.role, effect)
		}
	}
	return b.String()
}

// annotated writes a line of TOML followed by its documentation, wrapped. Role (the pilot-agent
// equivalent) and effect are in columns of their own at the end of the last line.
func annotated(b *strings.Builder, line, doc, role, effect string) {
	if doc+role+effect == "" {
		b.WriteString(line + "\n")
		return
	}
	line = padded(line, commentColumn, 1) + "#"
	for _, word := range strings.Fields(doc) {
		if columns(line)+1+columns(word) > lineWidth {
			b.WriteString(line + "\n")
			line = strings.Repeat(" ", commentColumn) + "#"
		}
		line += " " + word
	}
	marked := withMarks(line, role, effect)
	if columns(marked) > marksWidth {
		b.WriteString(line + "\n")
		marked = withMarks(strings.Repeat(" ", commentColumn)+"#", role, effect)
	}
	b.WriteString(strings.TrimRight(marked, " ") + "\n")
}

// withMarks appends to a line the role and the effect of a key, in roleColumn and effectColumn if
// the line is short enough. A long role begins further left.
func withMarks(line, role, effect string) string {
	if role != "" {
		line = padded(line, min(roleColumn, effectColumn-1-columns(role)), 2) + role
	}
	if effect != "" {
		line = padded(line, effectColumn, 1) + effect
	}
	return line
}

// padded pads a line with spaces to a column, with at least gap spaces.
func padded(line string, column, gap int) string {
	return line + strings.Repeat(" ", max(gap, column-columns(line)))
}

func columns(s string) int { return utf8.RuneCountInString(s) }

// discoverydHeader is the beginning of the annotated file of outrider-discoveryd.
const discoverydHeader = `# /etc/outrider/discoveryd.toml: the configuration of outrider-discoveryd, with all keys and their defaults.
#
# The rules of outrider.toml(5) apply. Drop-ins are in /etc/outrider/discoveryd.d/*.toml: a table merges, a list and an
# array of tables ([[source]]) replace those of the files before. SIGHUP and file changes apply [live] keys in place;
# [start] keys wait for the next start and are reported as pending.
#
# [[source]] is where configuration comes from, in order: of two objects with one name the earlier
# source's counts, and an access policy of the later one that differs denies what it selects.
# [[registry]] is where services and endpoints come from, beside ServiceEntry and WorkloadEntry of the sources.
`

// discoverydDefaultsTOML returns the annotated file with all keys of outrider-discoveryd and their
// defaults: etc/discoveryd.toml.
//
//go:generate go test -run TestDiscoveryd_ExampleIsWrittenFromTheDefinitions -update .
func discoverydDefaultsTOML() string {
	return annotatedFile(discoverydHeader, annotatedDiscoveryd())
}

// annotatedDiscoveryd returns the tables of discoveryd.toml, with one table for each array of
// tables.
func annotatedDiscoveryd() (all []table) {
	for _, t := range discoverydTables(defaultDiscoveryd()) {
		if t.name == "registration" {
			registry := sourceTable("registry", newSource(true), true)
			issuer := issuerTable("auth.jwt_issuers", &JWTIssuer{})
			registry.sample, issuer.sample = true, true
			all = append(all, issuer, sourceTable("source", newSource(false), false), registry)
		}
		all = append(all, t)
	}
	return all
}

package istiovm

import (
	"fmt"
	"slices"
	"strings"

	"outrider.org/outrider/agent/config"
)

// Result is the configuration that replaces Istio's files of a virtual machine. It is valid.
type Result struct {
	Config string // content of outrider.toml
	// settings that have no equivalent, or a different effect; Config contains them as comments
	Notes []string
}

// document is a configuration file under construction.
type document struct {
	settings []setting
	notes    []string
}

type setting struct {
	key   string // TABLE.KEY
	value any
	from  string // the original setting, which becomes a comment
}

// tables lists the tables in the order of outrider.toml(5).
var tables = []string{"node", "envoy", "discovery", "identity", "status", "health", "dns",
	"capture", "telemetry", "tracing"}

// set sets a key; a later call for the same key replaces the value.
func (d *document) set(key string, value any, from string) {
	for i, s := range d.settings {
		if s.key == key {
			d.settings[i] = setting{key, value, from}
			return
		}
	}
	d.settings = append(d.settings, setting{key, value, from})
}

func (d *document) note(sentence string) { d.notes = append(d.notes, sentence) }

// result renders the configuration. A setting that this version of Outrider refuses becomes a
// comment, and causes a note.
func (d *document) result() (*Result, error) {
	lines := d.lines()
	for {
		refused := config.CheckTOML("istio.toml", strings.Join(lines, "\n")+"\n")
		if len(refused) == 0 {
			break
		}
		for _, e := range refused {
			if e.Line == 0 || strings.HasPrefix(lines[e.Line-1], "#") {
				return nil, fmt.Errorf("the configuration converted from the files is not "+
					"valid: %w", e)
			}
			d.note(fmt.Sprintf("%s: %s (the key is a comment in the file)", e.Key, e.Message))
			lines[e.Line-1] = "# " + lines[e.Line-1]
		}
	}
	slices.Sort(d.notes)
	d.notes = slices.Compact(d.notes)
	head := []string{"# Made by outrider import istio. Changes of this file are kept: it is not " +
		"generated again."}
	if len(d.notes) > 0 {
		head = append(head, "#", "# What has no equivalent, or differs:")
	}
	for _, note := range d.notes {
		head = append(head, "# - "+oneLine(note))
	}
	return &Result{Config: strings.Join(append(head, lines...), "\n") + "\n", Notes: d.notes}, nil
}

// lines renders the settings, one line for each, sorted by tables.
func (d *document) lines() []string {
	var lines []string
	for _, table := range tables {
		head := len(lines)
		for _, s := range d.settings {
			of, name, _ := strings.Cut(s.key, ".")
			if of != table {
				continue
			}
			if head == len(lines) {
				lines = append(lines, "", "["+table+"]")
			}
			line := name + " = " + config.RenderTOML(s.value)
			if s.from != "" {
				line = fmt.Sprintf("%-44s # %s", line, s.from)
			}
			lines = append(lines, line)
		}
	}
	return lines
}

// oneLine replaces line breaks and other control characters, so that the text fits into a comment.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text)
}

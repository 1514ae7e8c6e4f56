package mesh

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/xds"
)

// meshRecord records the refused resources reported to the discovery server.
type meshRecord map[string]bool

func (meshRecord) Accepted(uint64, *corev3.Node) {}
func (meshRecord) Ended(uint64)                  {}

func (m meshRecord) Refused(_ string, refused []discovery.RefusedResource,
	_ error) (standing []string, placed bool) {
	for _, one := range refused {
		if one.Name == "replaced" {
			continue
		}
		m[one.Name] = true
		standing = append(standing, one.Name)
	}
	return standing, slices.Contains(standing, "known")
}

func (m meshRecord) Cured(_ string, names []string) {
	for _, name := range names {
		delete(m, name)
	}
}

func TestRefusalsLastAsLongAsSomebodyRefuses(t *testing.T) {
	mesh := meshRecord{}
	o := NewObserver(condition.NewBoard(), slog.New(slog.DiscardHandler), mesh, nil, nil)
	old, next := xds.Stream{ID: 1}, xds.Stream{ID: 2}
	refuse := func(stream xds.Stream, name string) {
		o.Refused(stream, xds.Refusal{Type: resource.ListenerType, Resources: []string{name},
			Error: "cannot bind " + name + "\n"})
	}
	for _, step := range []struct {
		name    string
		do      func()
		refused string
	}{
		{"one that the mesh replaces", func() { refuse(old, "replaced") }, ""},
		{"one that an object explains", func() { refuse(old, "known") }, "known"},
		{"which is cured", func() { o.Cured(old, resource.ListenerType, []string{"known"}) }, ""},
		{"one", func() { refuse(old, "a") }, "a"},
		{"two", func() { refuse(old, "b") }, "a b"},
		{"one of two is cured", func() { o.Cured(old, resource.ListenerType, []string{"a"}) }, "b"},
		{"the next epoch refuses it too", func() { refuse(next, "b") }, "b"},
		{"the first one ends", func() { o.Disconnected(old, nil) }, "b"},
		{"and the other", func() { o.Disconnected(next, errors.New("it crashed")) }, ""},
	} {
		step.do()
		var told []string
		for name := range mesh {
			told = append(told, name)
		}
		slices.Sort(told)
		sentence := ""
		for _, c := range o.board.Conditions() {
			sentence += c.Sentence
		}
		if got := strings.Join(told, " "); got != step.refused {
			t.Errorf("%s: the mesh is told of %q, want %q", step.name, got, step.refused)
		}
		for _, name := range []string{"a", "b", "replaced", "known"} {
			want := strings.Contains(step.refused, name) && name != "known"
			if got := strings.Contains(sentence, "cannot bind "+name); got != want {
				t.Errorf("%s: the condition says %q", step.name, sentence)
			}
		}
		if strings.Contains(sentence, "\n") {
			t.Errorf("%s: a sentence of several lines: %q", step.name, sentence)
		}
	}
}

func TestRefused_NamesTheVersionInUse(t *testing.T) {
	for _, test := range []struct {
		kept []string
		want string
	}{
		{nil, "the previous version stays in use"},
		{[]string{"1"}, "the previous version stays in use (1)"},
		{[]string{"1", "2"}, "the previous versions stay in use (1, 2)"},
		{[]string{""}, "there is no previous version"},
		{[]string{"1", "", ""},
			"of 1 resources the previous version stays in use (1), the others have none"},
	} {
		if got := inUse(xds.Refusal{Kept: test.kept}); got != test.want {
			t.Errorf("%q: %s", test.kept, got)
		}
	}
}

package agent

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/ports"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/xds"
)

func TestXDSObserver_ConditionLastsAsLongAsSomebodyRefuses(t *testing.T) {
	server, err := discovery.New(discovery.Options{})
	if err != nil {
		t.Fatal(err)
	}
	board := condition.NewRegistry()
	o := newXDSObserver(board, slog.New(slog.DiscardHandler), server, nil,
		ports.NewUnboundListeners(ports.UnboundOptions{Source: server, Conditions: board}))
	old, next := xds.Stream{ID: 1}, xds.Stream{ID: 2}
	refuse := func(stream xds.Stream, name string, origins ...resource.Origin) {
		o.OnNack(stream, xds.Refusal{Type: resource.ListenerType, Resources: []string{name},
			Error: "cannot bind " + name + "\n", Origins: origins})
	}
	for _, step := range []struct {
		name    string
		do      func()
		refused string
	}{
		{"one that an object explains", func() { refuse(old, "known", resource.Origin{Line: 1}) }, ""},
		{"one", func() { refuse(old, "a") }, "a"},
		{"two", func() { refuse(old, "b") }, "a b"},
		{"one of two is accepted", func() {
			o.OnNackResolved(old, resource.ListenerType,
				[]string{"a"})
		}, "b"},
		{"the next epoch refuses it too", func() { refuse(next, "b") }, "b"},
		{"the first one ends", func() { o.OnDisconnect(old, nil) }, "b"},
		{"and the other", func() { o.OnDisconnect(next, errors.New("it crashed")) }, ""},
	} {
		step.do()
		sentence := ""
		for _, c := range o.board.Conditions() {
			sentence += c.Sentence
		}
		for _, name := range []string{"a", "b", "known"} {
			want := strings.Contains(step.refused, name)
			if got := strings.Contains(sentence, "cannot bind "+name); got != want {
				t.Errorf("%s: the condition says %q", step.name, sentence)
			}
		}
		if strings.Contains(sentence, "\n") {
			t.Errorf("%s: a sentence of several lines: %q", step.name, sentence)
		}
	}
}

func TestXDSObserver_NamesTheVersionInUse(t *testing.T) {
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
		if got := inUse(xds.Refusal{VersionsInUse: test.kept}); got != test.want {
			t.Errorf("%q: %s", test.kept, got)
		}
	}
}

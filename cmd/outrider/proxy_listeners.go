package main

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/resource"
)

// listener is what the table needs of envoy.config.listener.v3.Listener.
type listener struct {
	Name    string            `json:"name"`
	Address socketAddress     `json:"address"`
	Chains  []json.RawMessage `json:"filter_chains"`
	Default json.RawMessage   `json:"default_filter_chain"`
}

type listenerState struct {
	Version  string   `json:"version_info"`
	Listener listener `json:"listener"`
}

type listenersDump struct {
	Static []struct {
		Listener listener `json:"listener"`
	} `json:"static_listeners"`
	Dynamic []struct {
		Name     string         `json:"name"`
		Active   *listenerState `json:"active_state"`
		Warming  *listenerState `json:"warming_state"`
		Draining *listenerState `json:"draining_state"`
		Error    *struct {
			Details string `json:"details"`
		} `json:"error_state"`
	} `json:"dynamic_listeners"`
}

func (a *app) showListeners(ctx context.Context, client *api.Client, _ []string) error {
	var dumped listenersDump
	from, printed, err := a.decodeDump(ctx, client, "ListenersConfigDump", &dumped, resource.ListenerType)
	if printed || err != nil {
		return err
	}
	t := &table{head: []string{"LISTENER", "ADDRESS", "SOURCE", "VERSION", "STATE", "CHAINS", "FROM"}, wide: []string{"SOURCE", "VERSION", "CHAINS"}}
	add := func(name string, l listener, source, version, state string) {
		chains := len(l.Chains)
		if len(l.Default) > 0 {
			chains++
		}
		t.add(text("%s", cmp.Or(l.Name, name, "-")), text("%s", l.Address), text("%s", source), text("%s", a.short(version)),
			cell{state, stateWord(state)}, text("%d", chains),
			from.cell(resource.ListenerType, cmp.Or(l.Name, name)))
	}
	for _, l := range dumped.Static {
		add("", l.Listener, "static", "", "active")
	}
	for _, l := range dumped.Dynamic {
		for state, s := range map[string]*listenerState{"active": l.Active, "warming": l.Warming, "draining": l.Draining} {
			if s != nil {
				add(l.Name, s.Listener, "xds", s.Version, state)
			}
		}
		if l.Error != nil {
			t.add(text("%s", l.Name), text("-"), text("xds"), text("-"), cell{"refused: " + l.Error.Details, red}, text("-"),
				from.cell(resource.ListenerType, l.Name))
		}
	}
	slices.SortStableFunc(t.rows, func(x, y []cell) int {
		return cmp.Or(cmp.Compare(x[0].text, y[0].text), cmp.Compare(x[4].text, y[4].text))
	})
	a.write(t, "no listener")
	return nil
}

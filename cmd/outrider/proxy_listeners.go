package main

import (
	"cmp"
	"context"
	"encoding/json"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/resource"
)

// listener has the printed fields of envoy.config.listener.v3.Listener.
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
	from, printed, err := a.decodeDump(ctx, client, "ListenersConfigDump", &dumped,
		resource.ListenerType)
	if printed || err != nil {
		return err
	}
	t := &table{
		head: []string{"LISTENER", "ADDRESS", "SOURCE", "VERSION", "STATE", "CHAINS", "FROM"},
		wide: []string{"SOURCE", "VERSION", "CHAINS"},
	}
	add := func(name string, l listener, source, version, state string) {
		chains := len(l.Chains)
		if len(l.Default) > 0 {
			chains++
		}
		name = cmp.Or(l.Name, name)
		t.add(name, l.Address, source, a.short(version), cell{state, stateWord(state)}, chains,
			from.cell(resource.ListenerType, name))
	}
	for _, l := range dumped.Static {
		add("", l.Listener, "static", "", "active")
	}
	for _, l := range dumped.Dynamic {
		states := map[string]*listenerState{
			"active": l.Active, "warming": l.Warming, "draining": l.Draining,
		}
		for state, s := range states {
			if s != nil {
				add(l.Name, s.Listener, "xds", s.Version, state)
			}
		}
		if l.Error != nil {
			t.add(l.Name, "", "xds", "", cell{"refused: " + l.Error.Details, red}, "",
				from.cell(resource.ListenerType, l.Name))
		}
	}
	t.sortBy(0, 4)
	a.write(t, "no listener")
	return nil
}

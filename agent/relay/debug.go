package relay

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"outrider.org/outrider/agent/admission"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/lifecycle"
)

// DebugServer serves istiod's debug information over HTTP: GET /debug/NAME, for example
// /debug/config_dump?proxyID=ID. Only the configured local users may connect, because istiod treats
// every request as one of this host.
type DebugServer struct {
	lifecycle.Readiness
	Server     *Server
	Address    string   // listening address, as host:port
	Users      []uint32 // UIDs of the local users that may connect
	Conditions *condition.Registry
	Logger     *slog.Logger
}

// conditionDebug is active while DebugServer cannot bind its address.
const conditionDebug = "tap-address-unavailable"

// debugTimeout bounds a request to istiod.
const debugTimeout = 30 * time.Second

// Name returns the name of this component of the agent.
func (t *DebugServer) Name() string { return "tap" }

// Run serves until ctx ends. While the address cannot be bound, it raises a condition and retries
// every second.
func (t *DebugServer) Run(ctx context.Context) error {
	routes := http.NewServeMux()
	routes.HandleFunc("GET /debug/{name...}", t.debug)
	return admission.Service{Address: t.Address, Users: t.Users, Handler: routes, Logger: t.Logger,
		RefusalBody:  `{"error":"this user may not read from istiod, or has too many connections"}`,
		WriteTimeout: 2 * debugTimeout,
		OnBind: func(err error) {
			t.MarkReady()
			if err == nil {
				t.Conditions.Clear(conditionDebug)
				return
			}
			t.Conditions.Raise(conditionDebug, condition.Warning, fmt.Sprintf(
				"no tap on [discovery] debug_address: %v; it is tried again every second", err))
		}}.Serve(ctx)
}

func (t *DebugServer) debug(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), debugTimeout)
	defer cancel()
	name := r.PathValue("name")
	if r.URL.RawQuery != "" {
		name += "?" + r.URL.RawQuery
	}
	text, err := t.Server.QueryDebug(ctx, name)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text)
}

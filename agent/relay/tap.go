package relay

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"outrider.org/outrider/agent/admission"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/part"
)

// Tap serves istiod's debug information over HTTP: GET /debug/NAME, for example
// /debug/config_dump?proxyID=ID. Only some local users may connect: istiod answers to the identity
// of this host.
type Tap struct {
	part.Readiness
	Server  *Server
	Address string   // host:port
	Users   []uint32 // that may connect
	Board   *condition.Board
	Logger  *slog.Logger
}

// conditionTap is active while the address cannot be bound.
const conditionTap = "tap-address-unavailable"

// tapTime bounds a request to istiod.
const tapTime = 30 * time.Second

// Name returns the name of the part.
func (t *Tap) Name() string { return "tap" }

// Run serves until ctx ends. While the address cannot be bound, it raises a condition and retries
// every second.
func (t *Tap) Run(ctx context.Context) error {
	routes := http.NewServeMux()
	routes.HandleFunc("GET /debug/{name...}", t.debug)
	return admission.Service{Address: t.Address, Users: t.Users, Handler: routes, Logger: t.Logger,
		Refusal:      `{"error":"this user may not read from istiod, or has too many connections"}`,
		WriteTimeout: 2 * tapTime,
		Bound: func(err error) {
			t.MarkReady()
			if err == nil {
				t.Board.Clear(conditionTap)
				return
			}
			t.Board.Raise(conditionTap, condition.Warning, fmt.Sprintf(
				"no tap on [discovery] debug_address: %v; it is tried again every second", err))
		}}.Serve(ctx)
}

func (t *Tap) debug(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), tapTime)
	defer cancel()
	name := r.PathValue("name")
	if r.URL.RawQuery != "" {
		name += "?" + r.URL.RawQuery
	}
	text, err := t.Server.Debug(ctx, name)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text)
}

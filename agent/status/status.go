// Package status serves HTTP on two addresses. The status address (15020) has readiness, probes of
// the application and merged metrics; it is open to the network. The admin view (15000, loopback
// only) shows the admin interface of the live epoch.
package status

import (
	"context"
	"net/http"
	"time"

	"outrider.org/outrider/agent/config"
)

// Readiness reports whether the proxy is ready.
type Readiness interface {
	// Ready reports whether Envoy is live and configured. If not, reason says why, in a
	// sentence.
	Ready() (ready bool, reason string)
}

// Proxy gives access to the live epoch.
type Proxy interface {
	// LiveAdmin returns a transport to the live epoch's admin interface, which ignores the host of
	// a request, and the epoch's number. err says, in a sentence, why no epoch is live.
	LiveAdmin() (admin http.RoundTripper, epoch int, err error)
}

// DrainController implements POST /drain and /quitquitquit. Its methods return before the drain
// ends.
type DrainController interface {
	BeginDrain(ctx context.Context) error
	// Quit requests an orderly stop of the agent, with a drain.
	Quit(ctx context.Context) error
}

// Config holds the settings that may change while the server runs.
type Config struct {
	ProxyControlAllowed bool             // [status] control = "loopback"
	ApplicationMetrics  string           // URL; "" = none
	Probes              map[string]Probe // by name, which may contain slashes
}

// Probe is a probe of the application. Its headers override those of the same name in the incoming
// request; the others are forwarded, except hop-by-hop ones.
type Probe = config.Probe

// Limits of the status server and the admin view. The status address is open to the network.
const (
	answerTime     = 5 * time.Second // within which a client must have read a response
	bindRetryAfter = time.Second
)

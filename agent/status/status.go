// Package status is what the agent shows over HTTP: readiness, probes of the application and merged
// metrics on the status address (15020), and a view of the live epoch's admin interface on loopback
// (15000).
package status

import (
	"context"
	"net/http"
	"time"
)

// Readiness tells whether the proxy is ready.
type Readiness interface {
	// Ready is true once Envoy is live and has its configuration; if not, reason says why, in a
	// sentence.
	Ready() (ready bool, reason string)
}

// Proxy is the epoch that serves.
type Proxy interface {
	// Live returns a transport to that epoch's admin interface (whatever host a request names) and
	// its number. err says, in a sentence, why there is none.
	Live() (admin http.RoundTripper, epoch int, err error)
}

// Control is what POST /drain and /quitquitquit do.
type Control interface {
	Drain(ctx context.Context) error
	// Quit begins an orderly stop of the agent, drain and all, and returns at once.
	Quit(ctx context.Context) error
}

// Config is what may change while the server runs.
type Config struct {
	Control            bool             // [status] control = "loopback"
	ApplicationMetrics string           // URL; "" = none
	Probes             map[string]Probe // by name, which may hold slashes
}

// Probe is a probe of the application: one of HTTP, TCP and GRPC is set.
type Probe struct {
	HTTP    string            // URL
	TCP     string            // host:port
	GRPC    string            // host:port or host:port/service
	Headers map[string]string // of HTTP: replace those of the request
	Timeout time.Duration     // 0 = a second
}

// Limits of the servers. The status address is open to the network.
const (
	headerTime     = 5 * time.Second
	bodyTime       = 5 * time.Second
	answerTime     = 5 * time.Second // to take an answer that is ready
	idleTime       = time.Minute
	maximumHeader  = 32 << 10
	shutdownTime   = 2 * time.Second
	bindRetryAfter = time.Second
)

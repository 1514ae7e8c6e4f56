package registration

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/lifecycle"
	"outrider.org/outrider/agent/repeat"
	"outrider.org/outrider/agent/xds"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/auth"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/rates"
)

const (
	// maxPerIdentity bounds the registered workloads of one identity at this server. Workloads that
	// have left count until their entries are removed.
	maxPerIdentity = 8192
	// requestTime bounds each request to the store.
	requestTime = 5 * time.Second
	attempts    = 5 // attempts to write an entry if other programs change it at the same time
	maxMessage  = 1024
)

// Options configures a Server.
type Options struct {
	Store Store
	// GracePeriod is how long the entry of a workload without a stream is retained.
	GracePeriod time.Duration
	Conditions  *condition.Registry
	Logger      *slog.Logger
}

// Server registers workloads whose agents have a stream, writes their health to their entries, and
// removes the entries of workloads that have left. It is safe for concurrent use.
//
//	streams -- Register, ReportHealth, End --> hosts --+
//	Store.Entries, leases -----------------------------+--> reconcile --> Store
//
// For each new stream, the server claims the workload's entry: it becomes the entry's controller.
// Later it claims the entry again only if the entry is missing, or disconnected, or if the lease of
// its controller has expired. Otherwise two servers with streams of one workload would overwrite
// each other's claims endlessly.
type Server struct {
	lifecycle.Readiness
	options  Options
	instance string
	rates    rates.Limiter
	limiter  repeat.Limiter // limits log lines about refusals
	wake     chan struct{}
	turns    chan struct{} // holds an element for each running registration of a new stream
	serving  atomic.Bool
	leases   leases
	counters counters

	mu     sync.Mutex
	hosts  map[Key]*host
	owned  map[string]int // number of hosts by identity
	ending bool           // Run has ended: no host counts as having a stream
	states map[string]int // number of entries by state

	// The fields below belong to reconcile, which only one goroutine calls.
	silent map[Key]silence
	tried  map[Key]attempt
	down   time.Time // beginning of a failure of the store; zero: none
}

// host is a workload that has, or recently had, a stream to this server. The lock of the server
// guards its fields.
type host struct {
	key      Key
	identity string
	writing  sync.Mutex // serialises calls of claim
	sessions []*session // one for each stream, oldest first
	ended    time.Time  // end of the last stream; zero: a stream is open
	written  time.Time  // time of the last successful call of claim
	reported time.Time  // time of this server's last write of the health
}

// session is one stream of a workload. It implements xds.Registration. The lock of the server
// guards claimed and the fields below it.
type session struct {
	server   *Server
	host     *host
	applied  *applicant
	identity auth.Identity
	address  string
	since    time.Time
	refused  chan error
	claimed  bool    // a call of claim for this session has succeeded
	health   *Health // last report; nil: none
	failures int
	next     time.Time // earliest time at which reconcile calls claim again
	err      error     // failure of the store in the last call of claim; nil: none
}

// New returns a Server.
func New(options Options) *Server {
	return &Server{options: options, instance: newInstance(), wake: make(chan struct{}, 1),
		turns: make(chan struct{}, writers),
		hosts: map[Key]*host{}, owned: map[string]int{}, tried: map[Key]attempt{}}
}

// newInstance returns the name of this server's lease, which differs from those of all other
// processes.
func newInstance() string {
	name, _ := os.Hostname()
	name = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(name))
	random := make([]byte, 4)
	_, _ = rand.Read(random) // Read never returns an error
	return "outrider-discoveryd-" + name + "-" + hex.EncodeToString(random)
}

// Register registers the workload of a new stream. It implements xds.Options.RegisterWorkload. If
// the store fails, the stream is accepted, and Run registers the workload later.
func (s *Server) Register(ctx context.Context, client xds.Peer, node *corev3.Node) (
	xds.Registration, error) {
	applied, err := newApplicant(node)
	if applied == nil && err == nil {
		return nil, nil
	}
	var one *session
	if err != nil {
		err = status.Error(codes.InvalidArgument, err.Error())
	} else {
		one, err = s.enter(applied, client)
	}
	if err == nil {
		err = s.claimInTurn(ctx, one)
	}
	if !isRefusal(err) {
		s.retry(one, err)
		return one, nil
	}
	if one != nil {
		one.End()
	}
	s.counters.refused.Add(1)
	s.logRefusal([]any{"address", client.Address, "identity", client.Identity, "node",
		auth.ShortenForLog(node.GetId())}, err)
	return nil, err
}

// isRefusal reports whether an error is a gRPC status, which refuses the registration permanently.
func isRefusal(err error) bool {
	_, ok := err.(interface{ GRPCStatus() *status.Status })
	return ok
}

// enter checks the client's identity, and adds a session for the new stream to the workload's host.
func (s *Server) enter(applied *applicant, client xds.Peer) (*session, error) {
	id, ok := auth.ParseIdentity(client.Identity)
	if !ok {
		return nil, status.Error(codes.PermissionDenied, "registration needs an identity: connect "+
			"with TLS, and show a certificate or token")
	}
	if id.Namespace != applied.key.Namespace {
		return nil, status.Errorf(codes.PermissionDenied, "%s must not register in namespace %s", id,
			applied.key.Namespace)
	}
	if !s.rates.Allow(id.String(), time.Now()) {
		return nil, status.Errorf(codes.ResourceExhausted,
			"%s registers more than %d workloads a second: try again", id, rates.RequestsPerSecondPerIdentity)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.hosts[applied.key]
	if h == nil {
		h = &host{key: applied.key, identity: id.String()}
		if s.owned[h.identity] >= maxPerIdentity {
			return nil, status.Errorf(codes.ResourceExhausted,
				"%d workloads of %s are registered, no more are allowed", s.owned[h.identity], id)
		}
		s.hosts[applied.key] = h
		s.owned[h.identity]++
	}
	one := &session{server: s, host: h, applied: applied, identity: id, address: client.Address,
		since: time.Now(), refused: make(chan error, 1),
		// reconcile does not interfere while Register claims the entry
		next: time.Now().Add(2 * requestTime)}
	h.sessions = append(h.sessions, one)
	h.ended = time.Time{}
	return one, nil
}

// leave removes a host that has no streams. Callers hold mu.
func (s *Server) leave(h *host) {
	delete(s.hosts, h.key)
	if s.owned[h.identity]--; s.owned[h.identity] <= 0 {
		delete(s.owned, h.identity)
	}
}

// retry records the result of a call of claim. After an error it schedules another call.
func (s *Server) retry(one *session, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		one.failures, one.next, one.err = 0, time.Time{}, nil
		return
	}
	one.failures++
	one.next, one.err = time.Now().Add(retryPause(one.failures)), nil
	if unavailable(err) {
		one.err = err
	}
	// Other errors are conflicts, or failures of the store, for which reportStore raises a
	// condition.
	if isRefusal(err) {
		s.logRefusal(one.fields(), err)
	}
}

// logRefusal logs a refused registration.
func (s *Server) logRefusal(fields []any, err error) {
	reason := status.Convert(err).Message()
	omitted, ok := s.limiter.Allow(time.Now(), "", repeat.ErrorClass(reason),
		repeat.Limits{PerClass: 3, PerSubject: 10})
	if ok {
		s.options.Logger.Warn("refused registration", append(fields, "error", reason, "omitted",
			omitted)...)
	}
}

// ReportHealth records the health of the workload, which reconcile writes to its entry. It
// implements xds.Registration.
func (one *session) ReportHealth(healthy bool, problem string) {
	if len(problem) > maxMessage {
		problem = strings.ToValidUTF8(problem[:maxMessage], "") + "…"
	}
	one.server.mu.Lock()
	one.health = &Health{Healthy: healthy, Message: problem, ReportedAt: time.Now()}
	one.server.mu.Unlock()
	one.server.signal()
}

// Refused returns a channel that receives an error if the registration is refused after the stream
// was accepted. It implements xds.Registration.
func (one *session) Refused() <-chan error { return one.refused }

// End records the end of the stream. It implements xds.Registration.
func (one *session) End() {
	s, h := one.server, one.host
	s.mu.Lock()
	for i, other := range h.sessions {
		if other == one {
			h.sessions = append(h.sessions[:i:i], h.sessions[i+1:]...)
			break
		}
	}
	if len(h.sessions) == 0 {
		h.ended = time.Now()
	}
	s.mu.Unlock()
	s.signal()
}

// StartServing must be called when clients can connect. Until then the server removes no entries,
// because their workloads cannot connect.
func (s *Server) StartServing() { s.serving.Store(true) }

// signal makes Run call reconcile soon.
func (s *Server) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// unavailable reports whether an error is a failure of the store, not a refusal or a conflict.
func unavailable(err error) bool {
	return err != nil && !isRefusal(err) && !errors.Is(err, ErrConflict)
}

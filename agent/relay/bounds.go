package relay

import (
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Bounds of what a relay stores and sends, and of how long it waits.
const (
	defaultPatience = 500 * time.Millisecond
	// slowUpstream is how long the relay waits for the first response of a connected upstream
	// server before it serves from the cache.
	slowUpstream = 5 * time.Second
	// silentUpstream is how long the relay, while it serves from the cache, waits for the first
	// response of a connected upstream server before it tries the next address.
	silentUpstream   = 30 * time.Second
	maxRequestBytes  = 8 << 20
	maxNodeBytes     = 512 << 10
	maxResponseBytes = 256 << 20
	// maximum number of resources in one response, including removed ones
	maxResources = 1 << 20
	maxStreams   = 64  // maximum number of streams on one connection of a client
	maxRequests  = 256 // requests queued for an upstream server that does not read them
	// bytes of the queued requests; the first requests on a connection contain all resource names
	maxQueuedBytes    = 64 << 20
	maxPending        = 64      // unanswered responses of one type that are retained for one stream
	maxRefusalBytes   = 8 << 10 // maximum length of an error message of Envoy in bytes
	nameOverhead      = 64      // bytes of memory that a name or a version needs beside its text
	keepaliveInterval = 30 * time.Second
	keepaliveTimeout  = 10 * time.Second
	// shortest interval of keepalive pings that an Envoy may send
	keepaliveMinimum = 5 * time.Second
)

// share bounds the memory of the relay that a group of streams uses. The streams of Envoys have one
// share, and those of gRPC applications another, so that applications cannot exhaust the share of
// Envoys.
type share struct {
	nameBytes int   // bytes of the names and versions in the requests of one stream
	streams   quota // number of concurrent streams in the group
	names     quota // bytes of the names and versions in the requests of all streams
	pending   quota // bytes of responses that clients have not answered
	held      quota // bytes of resources that clients have accepted
}

func newShares() (envoys, others *share) {
	return &share{nameBytes: 32 << 20, streams: quota{most: 64}, names: quota{most: 128 << 20},
			pending: quota{most: 256 << 20}, held: quota{most: 512 << 20}},
		&share{nameBytes: 4 << 20, streams: quota{most: 32}, names: quota{most: 32 << 20},
			pending: quota{most: 64 << 20}, held: quota{most: 128 << 20}}
}

// quota is a limited amount that goroutines share. It is safe for concurrent use.
type quota struct {
	most int64
	used atomic.Int64
}

// take adds n to the used amount; a negative n returns that much. If the limit would be exceeded,
// take changes nothing and returns false.
func (q *quota) take(n int) bool {
	if q.used.Add(int64(n)) <= q.most || n <= 0 {
		return true
	}
	q.used.Add(-int64(n))
	return false
}

// shareOf returns the share (memory limits) that applies to a session's client.
func (s *Server) shareOf(session *session) *share {
	from, ok := peer.FromContext(session.stream.Context())
	if !ok || s.options.IsEnvoy == nil || s.options.IsEnvoy(from.Addr) {
		return s.envoys
	}
	return s.others
}

// countNames counts the memory of names and versions in a type's requests against the memory limits
// of the client's share. It returns an error if a limit is exceeded.
func (s *session) countNames(w *watch) error {
	bytes := w.requestBytes()
	change := bytes - w.counted.names
	if s.counted.names+change > s.share.nameBytes || !s.share.names.take(change) {
		return status.Errorf(codes.ResourceExhausted, "names and versions of more than %d MB, or "+
			"%d MB of all streams", s.share.nameBytes>>20, s.share.names.most>>20)
	}
	w.counted.names, s.counted.names = bytes, s.counted.names+change
	return nil
}

// countPending counts an unanswered response against the memory limit of the client's share. While
// the limit is exceeded, it drops unanswered responses of the type, oldest first. The relay still
// forwards a client's answer to a dropped response, but does not store the accepted resources.
func (s *session) countPending(w *watch) {
	for {
		change := w.pendingBytes() - w.counted.pending
		if s.share.pending.take(change) {
			w.counted.pending += change
			s.counted.pending += change
			return
		}
		w.forget()
	}
}

// countHeld counts the accepted resources of a type against the memory limit of the client's share.
// If the limit is exceeded, only the names and versions of the resources are stored.
func (s *session) countHeld(w *watch) error {
	for {
		change := w.heldBytes() - w.counted.held
		if s.share.held.take(change) {
			w.counted.held += change
			s.counted.held += change
			return nil
		}
		if !w.dropBodies() {
			return status.Errorf(codes.ResourceExhausted, "accepted resources of more than %d MB",
				s.share.held.most>>20)
		}
		if cache := s.cache(); cache != nil {
			cache.exceeded(s.share.held.most)
		}
	}
}

// release ends the use of the share's memory by a session.
func (s *session) release() {
	s.share.streams.take(-1)
	s.share.names.take(-s.counted.names)
	s.share.pending.take(-s.counted.pending)
	s.share.held.take(-s.counted.held)
}

// counted is the memory of one session that counts against its share, in bytes.
type counted struct{ names, pending, held int }

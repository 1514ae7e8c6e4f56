package status

import (
	"bytes"
	"compress/flate"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"outrider.org/outrider/agent/admission"
)

// large lists the paths whose answers grow with Envoy's configuration. Envoy builds such an answer
// on its main thread and holds all of it until it has been read.
var large = []string{"/certs", "/clusters", "/config_dump", "/init_dump", "/listeners", "/stats",
	"/stats/prometheus"}

// Limits for requests of large answers.
var (
	// for root, the agent's own user and Envoy's
	trustedDumps = admission.Limits{Total: 2, PerKey: 1}
	otherDumps   = admission.Limits{Total: 2, PerKey: 1} // for all others
)

const (
	dumpAtMost = 32 << 20 // bytes of one answer, compressed
	dumpWait   = 30 * time.Second
	dumpFetch  = 30 * time.Second
	dumpSlow   = 2 * time.Second // a client that reads longer can be evicted by another one
)

var errDumpTooLarge = fmt.Errorf(
	"the answer is larger than %d bytes even after compression", dumpAtMost)

// dumps is an HTTP transport to the live epoch's admin interface that bounds the number of
// concurrent large answers. It reads such an answer from Envoy completely, and holds it compressed
// until the client has read it.
type dumps struct {
	live            live
	gate            *gate
	trusted, others *admission.Pool
	waitFor, slow   time.Duration
}

func newDumps(proxy Proxy, gate *gate) *dumps {
	return &dumps{live: live{proxy}, gate: gate, trusted: admission.NewPool(trustedDumps),
		others:  admission.NewPool(otherDumps),
		waitFor: dumpWait, slow: dumpSlow}
}

// RoundTrip implements http.RoundTripper.
func (d *dumps) RoundTrip(request *http.Request) (*http.Response, error) {
	return d.roundTrip(request, func(*http.Response) {})
}

// redactedDumps is like dumps, and removes credentials from the answers.
type redactedDumps struct{ *dumps }

// RoundTrip implements http.RoundTripper.
func (d redactedDumps) RoundTrip(request *http.Request) (*http.Response, error) {
	return d.roundTrip(request, redactResponse)
}

// roundTrip sends a request and calls redact for the answer before it compresses a large one.
func (d *dumps) roundTrip(
	request *http.Request, redact func(*http.Response),
) (*http.Response, error) {
	if !slices.Contains(large, request.URL.Path) || request.Method != http.MethodGet {
		response, err := d.live.RoundTrip(request)
		if err == nil {
			redact(response)
		}
		return response, err
	}
	body := &dumpBody{}
	if err := d.enter(request.Context(), body); err != nil {
		return nil, err
	}
	// Envoy completes the answer even if the client disconnects. Until then the request must count
	// against the limit of concurrent requests, so it is not cancelled with the client's request.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(request.Context()), dumpFetch)
	defer cancel()
	response, err := d.live.RoundTrip(request.WithContext(ctx))
	if err == nil {
		redact(response)
		err = body.fill(response)
	}
	if err != nil {
		body.slot.Release()
		return nil, err
	}
	body.timer = time.AfterFunc(d.slow, body.slot.SetIdle)
	return response, nil
}

// enter waits for a slot. If another client later takes over the slot, body can no longer be read,
// and the connection of the client that had the slot is closed.
func (d *dumps) enter(ctx context.Context, body *dumpBody) (err error) {
	key, conn, pool := admission.KeyFromContext(ctx), admission.ConnFromContext(ctx), d.others
	if d.gate.isTrusted(key) {
		pool = d.trusted
	}
	waiting, cancel := context.WithTimeout(ctx, d.waitFor)
	defer cancel()
	body.slot, err = pool.WaitAcquire(waiting, key, func() {
		body.evicted.Store(true)
		if conn != nil {
			_ = conn.Close()
		}
	})
	if err != nil && ctx.Err() == nil {
		return &unavailableError{
			"others are reading large answers of Envoy's admin interface: try again later"}
	}
	return err
}

// dumpBody is the body of a large answer, held in memory.
type dumpBody struct {
	slot    *admission.Slot
	evicted atomic.Bool
	timer   *time.Timer
	text    io.ReadCloser
}

var errEvicted = errors.New(
	"transfer aborted: the client read too slowly while another client was waiting")

// fill reads the whole body of a response into b, compressed, and makes b the body of the response.
func (b *dumpBody) fill(response *http.Response) error {
	defer response.Body.Close()
	compressed := &bounded{}
	writer, err := flate.NewWriter(compressed, flate.BestSpeed)
	if err != nil {
		return err
	}
	size, err := io.Copy(writer, response.Body)
	if err == nil {
		err = writer.Close()
	}
	if err != nil {
		return &unavailableError{fmt.Sprintf("read the answer of Envoy's admin interface: %v", err)}
	}
	b.text = flate.NewReader(&compressed.Buffer)
	response.Body, response.ContentLength = b, size
	response.Header.Del("Transfer-Encoding")
	response.Header.Set("Content-Length", fmt.Sprint(size))
	return nil
}

// Read implements io.Reader.
func (b *dumpBody) Read(p []byte) (int, error) {
	if b.evicted.Load() {
		return 0, errEvicted
	}
	return b.text.Read(p)
}

// Close implements io.Closer.
func (b *dumpBody) Close() error {
	b.timer.Stop()
	b.slot.Release()
	return b.text.Close()
}

// bounded is a buffer of at most dumpAtMost bytes.
type bounded struct{ bytes.Buffer }

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > dumpAtMost {
		return 0, errDumpTooLarge
	}
	return b.Buffer.Write(p)
}

// Package load is the project's load generator. It sends requests at a fixed pace, independently of
// the answers (an open model), never retries, and counts every request that was not answered
// correctly, by its outcome.
//
// The standard load is 1800 requests/s: ka, 32 HTTP/1.1 keep-alive connections; nc, 8 workers with
// a new connection per request; h2, 4 connections of HTTP/2 without TLS with 8 streams each; 25
// requests/s per stream. In addition, tcp: 50 long-lived connections to an echo server with 10
// messages/s each.
//
// Latency is measured from the time at which a request was due, so that a late answer also counts
// in the latency of the requests that it delays (no coordinated omission).
package load

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"
)

// Config configures a run. Zero values, except for the addresses, mean the standard load.
type Config struct {
	// HTTPAddress is the address for the classes ka and nc: host:port, or the path of a Unix
	// socket; "": neither.
	HTTPAddress  string `json:"http"`
	HTTP2Address string `json:"http2"` // address for class h2; "": no such requests
	TCPAddress   string `json:"tcp"`   // address for class tcp; "": no such connections
	Path         string `json:"path"`  // of each request; "": /
	Host         string `json:"host"`  // of each request; "": the address
	// Rate is a factor on the standard rate; 0: 1.
	Rate    float64       `json:"rate,omitempty"`
	Timeout time.Duration `json:"timeout"` // of one operation, including connecting; 0: 5 s
	// Output receives a JSON line per second, once that second's requests have ended; nil: none.
	Output io.Writer `json:"-"`
}

// Classes of load. Each HTTP stream sends 25 requests/s, each tcp stream 10/s, times Config.Rate.
const (
	ClassKeepAlive      = "ka"
	ClassNewConnections = "nc"
	ClassHTTP2          = "h2"
	ClassTCP            = "tcp"

	keepAliveStreams  = 32
	connectingStreams = 8
	http2Connections  = 4
	http2Streams      = 8 // on each connection
	tcpStreams        = 50
	requestsPerSecond = 25
	messagesPerSecond = 10
	defaultTimeout    = 5 * time.Second
)

// RunningLoad is a running load.
type RunningLoad struct {
	config   Config
	recorder *recorder
	stop     context.CancelFunc
	streams  sync.WaitGroup
	printer  sync.WaitGroup
	stopped  func() time.Time // returns the end of the run, the same for all callers
	report   func() Report
}

// exchanger runs the operations of a stream.
type exchanger interface {
	// exchange runs one operation, until deadline at the latest.
	exchange(deadline time.Time) Outcome
	close()
}

// Start starts the load. It runs until Stop is called or ctx is done.
func Start(ctx context.Context, config Config) (*RunningLoad, error) {
	if config.HTTPAddress == "" && config.HTTP2Address == "" && config.TCPAddress == "" {
		return nil, errors.New("load: no address to send requests to")
	}
	if config.Rate < 0 {
		return nil, errors.New("load: the rate is negative")
	}
	if config.Rate == 0 {
		config.Rate = 1
	}
	if config.Timeout == 0 {
		config.Timeout = defaultTimeout
	}
	if config.Path == "" {
		config.Path = "/"
	}
	ctx, stop := context.WithCancel(ctx)
	r := &RunningLoad{config: config, recorder: newRecorder(time.Now()), stop: stop}
	r.stopped = sync.OnceValue(time.Now)
	r.report = sync.OnceValue(r.finish)
	if config.HTTPAddress != "" {
		r.spread(ctx, ClassKeepAlive, requestsPerSecond, keepAliveStreams, func(int) exchanger {
			return newHTTP1(config.HTTPAddress, config.host(config.HTTPAddress), config.Path, true)
		})
		r.spread(ctx, ClassNewConnections, requestsPerSecond, connectingStreams,
			func(int) exchanger {
				return newHTTP1(config.HTTPAddress, config.host(config.HTTPAddress), config.Path, false)
			})
	}
	if config.HTTP2Address != "" {
		connections := make([]*http2Slot, http2Connections)
		for i := range connections {
			connections[i] = newHTTP2Slot(config.HTTP2Address, config.host(config.HTTP2Address), config.Path)
		}
		r.spread(ctx, ClassHTTP2, requestsPerSecond, http2Connections*http2Streams,
			func(i int) exchanger {
				return connections[i%http2Connections]
			})
	}
	if config.TCPAddress != "" {
		r.spread(ctx, ClassTCP, messagesPerSecond, tcpStreams, func(i int) exchanger {
			return &echoStream{address: config.TCPAddress, stream: i}
		})
	}
	if config.Output != nil {
		r.printer.Go(func() { r.print(ctx) })
	}
	return r, nil
}

func (c Config) host(address string) string {
	if c.Host != "" {
		return c.Host
	}
	if network(address) == "unix" {
		return "localhost"
	}
	return address
}

// spread starts the streams of a class, with their requests spread evenly over an interval.
func (r *RunningLoad) spread(ctx context.Context, class string, perSecond float64, streams int,
	open func(i int) exchanger) {
	interval := time.Duration(float64(time.Second) / (perSecond * r.config.Rate))
	r.recorder.class(class)
	for i := range streams {
		first := r.recorder.start.Add(interval * time.Duration(i) / time.Duration(streams))
		r.streams.Go(func() { r.stream(ctx, class, first, interval, open(i)) })
	}
}

// stream sends a request at first and after every interval. After a late answer it sends the
// requests that are due at once.
func (r *RunningLoad) stream(ctx context.Context, class string, first time.Time,
	interval time.Duration,
	exchanges exchanger) {
	defer exchanges.close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for intended := first; ; intended = intended.Add(interval) {
		idle := time.Until(intended) > 0
		timer.Reset(max(0, time.Until(intended)))
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		if ctx.Err() != nil {
			if late := r.stopped().Sub(intended); late > 0 {
				r.recorder.unsent(class, 1+int(late/interval))
			}
			return
		}
		sent := time.Now()
		outcome := exchanges.exchange(sent.Add(r.config.Timeout))
		stall := time.Duration(0)
		if idle {
			stall = sent.Sub(intended)
		}
		r.recorder.add(class, intended, time.Now(), outcome, stall)
	}
}

// Mark adds an event to the report.
func (r *RunningLoad) Mark(label string) { r.recorder.mark(label, time.Now()) }

// Stop stops sending, waits for outstanding answers and returns the report. It may be called again.
func (r *RunningLoad) Stop() Report { return r.report() }

func (r *RunningLoad) finish() Report {
	r.stopped()
	r.stop()
	r.streams.Wait()
	r.printer.Wait()
	return r.recorder.report(time.Now())
}

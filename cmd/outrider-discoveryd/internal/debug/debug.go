// Package debug answers requests for information about the discovery server: for istiod's debug
// types over xDS (Debugger.AnswerRequest), and for the same information as pages over HTTP
// (Debugger.ServePage). Credentials are redacted. It generates one answer at a time, because an
// answer about 10,000 clients has megabytes.
package debug

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/redact"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/xds"
)

// Options configures a Debugger.
type Options struct {
	XDS       *xds.Server
	Discovery *discovery.Server
	// returns a gRPC status if a client may not receive debug information
	Authorize func(client xds.Peer) error
	// Sources returns the state of the configuration sources and service registries for encoding as
	// JSON; nil: none.
	Sources func() any
}

// Debugger answers requests for debug information. It is safe for concurrent use.
type Debugger struct {
	options Options
	turn    chan struct{} // has one element while an answer is generated
}

// answerTime bounds the time to generate an answer, and the wait until other answers are generated.
const answerTime = 30 * time.Second

// readTime bounds the time in which a client on this host must read a page.
const readTime = 5 * time.Second

// New returns a Debugger with the given options.
func New(options Options) *Debugger {
	return &Debugger{options: options, turn: make(chan struct{}, 1)}
}

// topics maps the names of answers, which are paths below /debug/, to the functions that generate
// them.
var topics = map[string]struct {
	help   string
	answer func(d *Debugger, ctx context.Context, query url.Values) (any, error)
}{
	"syncz":       {"what each proxy was sent and has accepted", (*Debugger).syncz},
	"connections": {"proxies that are connected", (*Debugger).connections},
	"config_dump": {"resources of one proxy: ?proxyID=ID, endpoints too: &include_eds",
		(*Debugger).configDump},
	"ndsz": {"hosts that one proxy imports, with their addresses: ?proxyID=ID",
		(*Debugger).names},
	"edsz":     {"endpoints of one proxy: ?proxyID=ID", (*Debugger).endpoints},
	"pushes":   {"responses, refusals and times", (*Debugger).pushes},
	"config":   {"objects by kind, sources and problems", (*Debugger).config},
	"registry": {"hosts with their addresses and ports", (*Debugger).registry},
}

// AnswerRequest implements xds.Options.AnswerDebugRequest.
func (d *Debugger) AnswerRequest(ctx context.Context, client xds.Peer, typeURL string,
	names []string) (
	[]*resource.Resource, error) {
	if err := d.options.Authorize(client); err != nil {
		return nil, err
	}
	name, proto := strings.CutPrefix(typeURL, xds.DebugType+"/")
	if !proto && len(names) != 1 || proto && len(names) > 1 {
		return nil, status.Errorf(codes.InvalidArgument, "%s: %d names, not one", typeURL, len(names))
	}
	done, err := d.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	switch {
	case proto && name == "syncz":
		return d.clientConfigs(ctx)
	case proto && name == "config_dump" && len(names) == 1:
		return d.dumpParts(ctx, names[0])
	case proto:
		return nil, status.Errorf(codes.NotFound, "there is no debug type %s", typeURL)
	}
	text, err := d.text(ctx, names[0])
	if err != nil {
		return nil, err
	}
	return []*resource.Resource{resource.FromEncoded(xds.DebugType, names[0], text)}, nil
}

// ServePage serves the answer at a path below /debug/ over HTTP. The caller must check the client's
// permission.
func (d *Debugger) ServePage(w http.ResponseWriter, r *http.Request) {
	done, err := d.begin(r.Context())
	if err == nil {
		defer done()
		ctx, cancel := context.WithTimeout(r.Context(), answerTime)
		defer cancel()
		var text []byte
		name := strings.TrimPrefix(r.URL.Path, "/debug/")
		if text, err = d.text(ctx, name+"?"+r.URL.RawQuery); err == nil {
			// without a deadline, a client that reads slowly would delay the answers for all other
			// clients
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(readTime))
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(text) // fails only if the client has disconnected
			return
		}
	}
	code := http.StatusBadRequest
	switch status.Code(err) {
	case codes.NotFound:
		code = http.StatusNotFound
	case codes.Unavailable:
		code = http.StatusServiceUnavailable
	}
	http.Error(w, status.Convert(err).Message(), code)
}

// begin waits until no other answer is being generated. The caller must call done after its answer.
func (d *Debugger) begin(ctx context.Context) (done func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	select {
	case d.turn <- struct{}{}:
		return func() { <-d.turn }, nil
	case <-ctx.Done():
		return nil, status.Error(codes.Unavailable, "others are answered: try again")
	}
}

// text returns an answer as JSON. name is a path below /debug/ with an optional query.
func (d *Debugger) text(ctx context.Context, name string) ([]byte, error) {
	path, query, _ := strings.Cut(name, "?")
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "%q: %v", name, err)
	}
	if path == "list" || path == "" {
		return encode(slices.Sorted(maps.Keys(topics)))
	}
	topic, ok := topics[path]
	if !ok {
		return nil, status.Errorf(codes.NotFound, "there is no %q; there are %s", path,
			strings.Join(slices.Sorted(maps.Keys(topics)), ", "))
	}
	answer, err := topic.answer(d, ctx, values)
	if err != nil {
		return nil, err
	}
	return encode(answer)
}

// encode returns a value as JSON in which credentials are redacted.
func encode(answer any) ([]byte, error) {
	text, err := json.Marshal(answer)
	if err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}
	var out bytes.Buffer
	r := redact.New(&out)
	// writing to memory cannot fail
	_, _ = r.Write(text)
	_ = r.Flush()
	return out.Bytes(), nil
}

package xds

import (
	"context"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// DebugType is the type URL of debug information, which istiod uses, too. The name of such a
// resource is the path and query of a URL below /debug/, and its value is the body of the response.
// Outrider's own kinds of debug information have type URLs that begin with DebugType and a slash.
const DebugType = "istio.io/debug"

func isDebug(typeURL string) bool {
	return typeURL == DebugType || strings.HasPrefix(typeURL, DebugType+"/")
}

// debug serves a stream whose first request is for debug information. It uses no feed, because the
// client may be no proxy. It handles a request only after the client has read the response to the
// previous one.
func (st *stream) debug(ctx context.Context, r *request) error {
	limits := limits{types: maxTypes, nameBytes: maxNameBytes,
		bytes: st.server.options.MaxSubscriptionBytes}
	nonce := 0
	for ; ; r = nil {
		for r == nil || r.nonce != "" { // an acknowledgement gets no response
			select {
			case got := <-st.next():
				if r = got.request; r == nil {
					return got.err
				}
			case <-st.server.drain.started:
				return errDraining
			case <-ctx.Done():
				return status.FromContextError(ctx.Err()).Err()
			}
		}
		if err := limits.check(r); err != nil {
			return err
		}
		if !isDebug(r.typeURL) {
			return status.Errorf(codes.InvalidArgument,
				"this stream began with a request of type %s: use another one for %s", DebugType,
				r.typeURL)
		}
		names := r.names
		if st.Delta {
			names = r.subscribe
		}
		found, err := st.server.options.AnswerDebugRequest(ctx, st.Peer, r.typeURL, names)
		if err != nil {
			return err
		}
		nonce++
		answer := &response{typeURL: r.typeURL, nonce: strconv.Itoa(nonce), sent: time.Now(),
			body: newBody(found, st.Delta)}
		if err := st.deliver(ctx, answer); err != nil {
			return err
		}
	}
}

// deliver sends a response and waits until the client has read it.
func (st *stream) deliver(ctx context.Context, r *response) error {
	sent := make(chan error, 1)
	go func() { sent <- st.carrier.SendMsg(r.frame(st.Delta, st.server.options.ControlPlane)) }()
	timer := time.NewTimer(st.server.options.SendTimeout)
	defer timer.Stop()
	select {
	case err := <-sent:
		return err
	case <-timer.C:
		return st.stuckError()
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

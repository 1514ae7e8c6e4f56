package xds

import (
	"context"

	"outrider.org/outrider/agent/resource"
)

// Registration is the registration of a workload by one of its streams. Its methods must not block.
type Registration interface {
	// Report records that the workload is healthy, or why it is not.
	Report(healthy bool, problem string)
	// Refused returns a channel with the error that ends the stream if the workload cannot be
	// registered after all.
	Refused() <-chan error
	// End is called once, at the end of the stream.
	End()
}

// register registers the workload of the client.
func (st *stream) register(ctx context.Context) (err error) {
	register := st.server.options.Register
	if register == nil || st.Service != ServiceADS {
		return nil
	}
	st.registration, err = register(ctx, st.Peer, st.Node)
	if err == nil && st.registration != nil {
		st.denied = st.registration.Refused()
	}
	return err
}

// deregister ends the registration.
func (st *stream) deregister() {
	if st.registration != nil {
		st.registration.End()
	}
}

// report passes on the health in a request. It reports whether the request is such a one.
func (st *stream) report(r *request) bool {
	if r.typeURL != resource.HealthType {
		return false
	}
	if st.registration != nil {
		st.registration.Report(r.refusal == nil, r.refusal.GetMessage())
	}
	return true
}

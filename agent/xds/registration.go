package xds

import (
	"context"

	"outrider.org/outrider/agent/resource"
)

// Registration is the registration of a workload for the duration of one of its streams. Its
// methods must not block.
type Registration interface {
	// ReportHealth records whether the workload is healthy, and why it is not.
	ReportHealth(healthy bool, problem string)
	// Refused returns a channel that delivers the error with which the stream must end, if the
	// workload cannot be registered.
	Refused() <-chan error
	// End is called once, when the stream ends.
	End()
}

// register calls Options.RegisterWorkload for the client of an ADS stream.
func (st *stream) register(ctx context.Context) (err error) {
	register := st.server.options.RegisterWorkload
	if register == nil || st.Service != ServiceADS {
		return nil
	}
	st.registration, err = register(ctx, st.Peer, st.Node)
	if err == nil && st.registration != nil {
		st.denied = st.registration.Refused()
	}
	return err
}

// deregister ends the registration of the client's workload, if there is one.
func (st *stream) deregister() {
	if st.registration != nil {
		st.registration.End()
	}
}

// report passes the workload's health in a request to the registration. It returns false if the
// request is not about health.
func (st *stream) report(r *request) bool {
	if r.typeURL != resource.HealthType {
		return false
	}
	if st.registration != nil {
		st.registration.ReportHealth(r.refusal == nil, r.refusal.GetMessage())
	}
	return true
}

package xds

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// checkUnanswered returns an error if the responses that the client has not answered exceed
// Options.MaxUnansweredBytes.
func (st *stream) checkUnanswered() error {
	most := st.server.options.MaxUnansweredBytes
	if most <= 0 {
		return nil
	}
	if size := st.session.unansweredBytes(); size > most {
		st.server.counters.stuck.Add(1)
		return status.Errorf(codes.ResourceExhausted,
			"the client has not answered responses of %d bytes, more than %d: disconnected", size, most)
	}
	return nil
}

// stuckError counts a client that has not read a response in time, and returns the error that ends
// its stream.
func (st *stream) stuckError() error {
	st.server.counters.stuck.Add(1)
	return status.Errorf(codes.DeadlineExceeded, "the client has not read for %v: disconnected",
		st.server.options.SendTimeout)
}

package main

import (
	"context"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/lifecycle"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source"
)

// problemReceiver is a source that writes back whether each object is valid, such as to its status
// in Kubernetes.
type problemReceiver interface{ ReportProblems([]discovery.Problem) }

// reporter passes the current problems of all objects to each problemReceiver, after each push.
type reporter struct {
	lifecycle.Readiness
	server    *discovery.Server
	pushed    <-chan struct{}
	receivers []problemReceiver
}

func newReporter(server *discovery.Server, pushed <-chan struct{}, all []source.Source) *reporter {
	r := &reporter{server: server, pushed: pushed}
	for _, s := range all {
		if receiver, ok := s.(problemReceiver); ok {
			r.receivers = append(r.receivers, receiver)
		}
	}
	return r
}

// Name returns the name of the component.
func (r *reporter) Name() string { return "reporter" }

// Run passes problems to the sources until ctx ends.
func (r *reporter) Run(ctx context.Context) error {
	r.MarkReady()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.pushed:
		}
		if len(r.receivers) == 0 {
			continue
		}
		problems := r.server.Problems()
		for _, receiver := range r.receivers {
			receiver.ReportProblems(problems)
		}
	}
}

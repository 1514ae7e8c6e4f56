package xds

func (st *stream) pushed(r *response) {
	st.server.counters.pushed(r)
	st.server.observer.OnPush(st.Stream, Push{
		Type: r.typeURL, Nonce: r.nonce, Version: r.version, Resources: len(r.resources),
		Removed: r.removed, Bytes: r.body.size, response: r,
	})
}

// accepted implements reporter.
func (st *stream) accepted(r *response) {
	st.server.counters.accepted(r, r.published.After(st.OpenedAt))
	st.server.observer.OnAck(st.Stream, r.typeURL, r.version)
}

// refused implements reporter.
func (st *stream) refused(r Refusal) {
	st.server.counters.refused(r.Type)
	st.server.logger.Warn("xDS client refuses resources", "stream", st.ID, "node", st.Node.GetId(),
		"type", r.Type,
		"resources", first(r.Resources, 10), "count", len(r.Resources), "error", r.Error)
	st.server.observer.OnNack(st.Stream, r)
}

// recovered implements reporter.
func (st *stream) recovered(typeURL string, names []string) {
	st.server.observer.OnNackResolved(st.Stream, typeURL, names)
}

// notOffered implements reporter.
func (st *stream) notOffered(typeURL string) {
	st.server.logger.Warn("xDS client requested unsupported type, sending empty response",
		"stream", st.ID, "node", st.Node.GetId(), "type", typeURL)
}

func first(names []string, n int) []string { return names[:min(n, len(names))] }

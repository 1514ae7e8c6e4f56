package epoch

// Activity is what clients have open to an epoch, without its admin interface and listeners
// that are not the user's.
type Activity struct {
	Connections uint64 // all of them
	Requests    uint64 // in flight; an upgraded connection (WebSocket, CONNECT) is one
	Tunnels     uint64 // connections that are not HTTP
}

// Idle reports whether nothing would be lost by ending Envoy now, except idle keep-alive
// connections, whose clients retry.
func (a Activity) Idle() bool { return a.Requests == 0 && a.Tunnels == 0 }

package keeper

import (
	"context"
)

// Dialer reaches the keeper.
type Dialer interface {
	Dial(ctx context.Context) (*Client, error)
	// Upgrade makes a keeper of another protocol re-execute itself from the installed program.
	Upgrade(ctx context.Context) error
}

// SocketDialer is the path of the keeper's socket. It implements Dialer for a keeper that systemd
// starts.
type SocketDialer string

// Dial connects to the keeper.
func (s SocketDialer) Dial(ctx context.Context) (*Client, error) {
	return Dial(ctx, string(s))
}

// Upgrade implements Dialer.
func (s SocketDialer) Upgrade(ctx context.Context) error { return Upgrade(ctx, string(s)) }

// LaunchingDialer implements Dialer for a keeper that the agent starts.
type LaunchingDialer struct {
	SocketDialer
	Options LaunchOptions
}

// Dial connects to the keeper, which it starts unless one runs.
func (p LaunchingDialer) Dial(ctx context.Context) (*Client, error) {
	return StartKeeper(ctx, p.Options)
}

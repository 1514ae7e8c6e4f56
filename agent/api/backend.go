package api

import (
	"context"
	"io"

	"outrider.org/outrider/agent/condition"
)

// Backend is what the agent implements. Every method may be called from many goroutines; a method that returns an *Error
// decides the answer's status, any other error is an answer of status 500 with its text.
type Backend interface {
	Observer
	Reloader
	Drainer
	Configurator
	Loggers
	Viewer
	Mesher
	Reporter
}

// Observer tells how the agent is.
type Observer interface {
	Status(ctx context.Context) (Status, error)
	// WaitReady returns nil once the proxy is ready. progress is told why it is not, at each change; when ctx ends it
	// returns an error that says why it is not.
	WaitReady(ctx context.Context, progress func(Progress)) error
}

// Reloader reloads.
type Reloader interface {
	// Reload returns once the outcome is known. A refusal is a result, not an error. The end of ctx only ends the
	// waiting: a reload that was begun goes on.
	Reload(ctx context.Context, request ReloadRequest, progress func(Progress)) (ReloadResult, error)
}

// Drainer drains.
type Drainer interface {
	// Drain starts draining and, if asked to, returns only when the listeners are closed and no connection is left. The end of ctx ends the waiting,
	// not the drain.
	Drain(ctx context.Context, request DrainRequest, progress func(Progress)) (DrainResult, error)
	// Undrain restores service and returns when an epoch that takes connections is live. The end of ctx ends the waiting,
	// not the undrain.
	Undrain(ctx context.Context, progress func(Progress)) (UndrainResult, error)
}

// Configurator shows the configuration.
type Configurator interface {
	Config(ctx context.Context) (Config, error)
	ConfigDiff(ctx context.Context) (ConfigDiff, error)
}

// Loggers shows and sets log levels.
type Loggers interface {
	LogLevels(ctx context.Context) (LogLevels, error)
	// SetLogLevels sets those that are given, all or none, and returns all.
	SetLogLevels(ctx context.Context, levels LogLevels) (LogLevels, error)
}

// Viewer looks into the proxy.
type Viewer interface {
	// Admin is a GET of the live epoch's admin interface, with credentials removed from the answer. path is one of
	// AdminPaths, query is as in a URL. The caller closes the body.
	Admin(ctx context.Context, path, query string) (AdminResponse, error)
	ResourceTypes(ctx context.Context) ([]ResourceType, error)
}

// AdminResponse is Envoy's answer.
type AdminResponse struct {
	Epoch       int
	Status      int
	ContentType string
	Body        io.ReadCloser
}

// Reporter gives what a bug report needs beside all of the above.
type Reporter interface {
	Report(ctx context.Context) ([]ReportPiece, error)
}

// Events is where events come from; *condition.Board is one.
type Events interface {
	Events(after uint64) []condition.Event
	Watch(buffer int) (<-chan condition.Event, func())
}

// AdminPaths are the paths of Envoy's admin interface that can be read through the private socket. None of them changes
// anything.
var AdminPaths = []string{
	"certs", "clusters", "config_dump", "hot_restart_version", "init_dump", "listeners", "memory", "ready", "runtime",
	"server_info", "stats", "stats/prometheus",
}

package api

import (
	"context"
	"encoding/json"
	"io"
)

// Backend performs the operations of the private socket; the agent implements it. Its methods must
// be safe for concurrent use. An *Error sets the status of the response; any other error becomes
// status 500 with its text. If the context of a long operation ends, the method returns and the
// operation continues.
type Backend interface {
	Status(ctx context.Context) (Status, error)
	// WaitReady returns nil once the proxy is ready. It calls progress with the reason whenever the
	// reason changes. When ctx ends it returns an error with the last reason.
	WaitReady(ctx context.Context, progress func(Progress)) error

	// Reload returns once the outcome is known. A refusal is a result, not an error.
	Reload(ctx context.Context, request ReloadRequest,
		progress func(Progress)) (ReloadResult, error)
	// Drain starts a drain. With request.Wait it returns only after the listeners are closed and no
	// connections remain.
	Drain(ctx context.Context, request DrainRequest, progress func(Progress)) (DrainResult, error)
	// Undrain restores service and returns when an epoch that accepts connections is live.
	Undrain(ctx context.Context, progress func(Progress)) (UndrainResult, error)

	Config(ctx context.Context) (Config, error)
	ConfigDiff(ctx context.Context) (ConfigDiff, error)
	LogLevels(ctx context.Context) (LogLevels, error)
	// SetLogLevels sets the non-empty levels, or none of them if one is invalid, and returns all
	// levels.
	SetLogLevels(ctx context.Context, levels LogLevels) (LogLevels, error)

	// Admin sends a GET to the live epoch's admin interface and redacts credentials in the
	// response. path is one of AllowedAdminPaths; query is URL-encoded. The caller closes the body.
	Admin(ctx context.Context, path, query string) (AdminResponse, error)
	ResourceTypes(ctx context.Context) ([]ResourceType, error)
	// UpstreamDebug returns istiod's response to GET /debug/NAME; name may have a query.
	UpstreamDebug(ctx context.Context, name string) (json.RawMessage, error)
	// Report returns the files of a bug report that no other method returns.
	Report(ctx context.Context) ([]ReportFile, error)

	MeshProblems(ctx context.Context) ([]MeshProblem, error)
	// MeshExplain predicts how the live epoch would handle a request, without sending it.
	MeshExplain(ctx context.Context, request MeshExplainRequest) (MeshExplanation, error)
	// MeshCompare returns the changes that files would cause for the live epoch, without applying
	// them.
	MeshCompare(ctx context.Context, request MeshFiles) (MeshComparison, error)
	// MeshOrigins returns the source objects of each resource of the live epoch.
	MeshOrigins(ctx context.Context) ([]MeshResourceOrigins, error)

	Capture(ctx context.Context) (Capture, error)
	ExplainCapture(ctx context.Context, request CaptureExplainRequest) (CaptureExplanation, error)
	// StartCaptureTrial applies the capture rules for a limited time. ConfirmCaptureTrial applies
	// them permanently.
	StartCaptureTrial(ctx context.Context, request CaptureTrialRequest) (Capture, error)
	ConfirmCaptureTrial(ctx context.Context) (Capture, error)
}

// AdminResponse is a response of Envoy's admin interface.
type AdminResponse struct {
	Epoch       int
	Status      int
	ContentType string
	Body        io.ReadCloser
}

// AllowedAdminPaths are the admin paths that clients of the private socket may read. None has side
// effects.
var AllowedAdminPaths = []string{
	"certs", "clusters", "config_dump", "hot_restart_version", "init_dump", "listeners", "memory",
	"ready", "runtime",
	"server_info", "stats", "stats/prometheus",
}

package bootstrap

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"outrider.org/outrider/agent/typedconfig"
)

// Request is the input of a rendering. The bootstrap is built from Input, unless a user's file or
// the upstream server's bootstrap replaces it. Override is merged into the result.
type Request struct {
	Input    Input  // Input.AdminSocket is ignored, see Rendered
	Custom   *File  // a user's complete bootstrap; nil = none
	Template *File  // a user's text/template of a bootstrap; nil = none
	Upstream []byte // the upstream server's bootstrap (protobuf); nil = none
	Override *File  // merged into the result; nil = none
	// ResultIsSecret reports that the result is secret: it is not written to a CachePath.
	ResultIsSecret bool `json:"-"`
}

// LimitError returns an error for exceeding a limit: an *Error in the user's file that is most
// expensive to render, or a *RenderProgramError.
func (r Request) LimitError(format string, arguments ...any) error {
	for _, file := range []*File{r.Template, r.Custom, r.Override} {
		if file != nil {
			return &Error{File: file.Path, Message: fmt.Sprintf(format, arguments...)}
		}
	}
	return &RenderProgramError{Err: fmt.Errorf("bootstrap: "+format, arguments...)}
}

// File is a user's file.
type File struct {
	Path    string // the extension selects JSON or YAML
	Content []byte
}

// AdminSocketPlaceholder is the placeholder for the admin socket in a Rendered.
const AdminSocketPlaceholder = "/path/of/the/admin/socket/of/an/epoch"

// Rendered is the bootstrap of all epochs of a configuration. The bootstraps of these epochs differ
// only in the path of the admin socket, so that a restart of a crashed Envoy needs no rendering.
type Rendered struct {
	Text []byte // JSON, with AdminSocketPlaceholder
	// AdminAddress is the admin interface of a user's bootstrap: a path or host:port; "" = the
	// epoch's socket.
	AdminAddress string `json:"Admin"`
	// ReferencedFiles has the certificates, keys and secrets that Envoy reads at its start.
	ReferencedFiles []string `json:"Files"`
}

// WithAdminSocket returns the bootstrap (JSON) of an epoch with an admin socket.
func (r *Rendered) WithAdminSocket(adminSocket string) ([]byte, error) {
	if len(adminSocket) > MaxSocketPath {
		return nil, fmt.Errorf("the path %s of Envoy's admin socket is longer than %d bytes; "+
			"choose a shorter [paths] runtime_dir", adminSocket, MaxSocketPath)
	}
	quoted, err := json.Marshal(adminSocket)
	if err != nil {
		return nil, fmt.Errorf("encode the path of Envoy's admin socket: %w", err)
	}
	return bytes.ReplaceAll(r.Text, []byte(AdminSocketPlaceholder), quoted[1:len(quoted)-1]), nil
}

// MaxSocketPath is the longest path of a Unix socket on Linux, in bytes.
const MaxSocketPath = 107

// RenderProgramProtocol is the version of RenderProgramInput and RenderProgramOutput. An upgrade
// replaces the program while the agent runs.
const RenderProgramProtocol = 1

// RenderProgramInput is the JSON on the standard input of outrider-bootstrap.
type RenderProgramInput struct {
	Protocol int
	Time     time.Duration // maximum CPU time
	Memory   uint64        // maximum memory in bytes
	Request  Request
	// Typed are typed_configs to check; nil: the program renders Request.
	Typed []typedconfig.Config `json:",omitempty"`
}

// MaxDuration returns the maximum duration, which allows for a busy machine.
func (q RenderProgramInput) MaxDuration() time.Duration { return q.Time + time.Minute }

// RenderProgramOutput is the JSON on the standard output of outrider-bootstrap. One field is set.
type RenderProgramOutput struct {
	Rendered *Rendered `json:",omitempty"`
	Fault    *Error    `json:",omitempty"` // an error in a user's file
	Failure  string    `json:",omitempty"` // another error in the request
	Unable   string    `json:",omitempty"` // why there is no result, see RenderProgramError
	// Findings are the results of checking RenderProgramInput.Typed, by index.
	Findings [][]typedconfig.Finding `json:",omitempty"`
}

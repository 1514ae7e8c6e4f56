package bootstrap

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

// Request says what a bootstrap is made of: of Input, or of one file of the user's that takes its place, with another one merged
// into the result.
type Request struct {
	Input    Input // its AdminSocket does not count: see Rendered
	Custom   *File // nil = none; a complete bootstrap
	Template *File // nil = none; a text/template of one
	Override *File // nil = none; merged into the result
	Secret   bool  `json:"-"` // it holds what is not to be written to a disk: it is not remembered in a Program's Cache
}

// File is a file of the user's, as it was read.
type File struct {
	Path    string // for messages, and its ending tells JSON from YAML
	Content []byte
}

// AnySocket stands in a Rendered for the path of an epoch's admin socket.
const AnySocket = "/path/of/the/admin/socket/of/an/epoch"

// Rendered is the bootstrap of every epoch of a configuration. They differ in the path of the admin socket alone, so that an Envoy
// that died is started again without anything being rendered.
type Rendered struct {
	Text  []byte   // JSON, with AnySocket
	Admin string   // where the user's own bootstrap has its admin interface: a path, or host:port; "" = on the epoch's socket
	Files []string // that Envoy reads certificates, keys and secrets from, each once: they have to be there before it starts
}

// For returns the bootstrap (JSON) of the epoch with an admin socket.
func (r *Rendered) For(adminSocket string) ([]byte, error) {
	if len(adminSocket) > MaxSocketPath {
		return nil, fmt.Errorf("the socket's path %s is longer than %d bytes; choose a shorter [paths] runtime_dir", adminSocket, MaxSocketPath)
	}
	quoted, err := json.Marshal(adminSocket)
	if err != nil {
		return nil, fmt.Errorf("the path of the admin socket: %w", err)
	}
	return bytes.ReplaceAll(r.Text, []byte(AnySocket), quoted[1:len(quoted)-1]), nil
}

// MaxSocketPath is the longest path of a Unix socket on Linux, in bytes.
const MaxSocketPath = 107

// Protocol is the version of what Program and the program tell each other. Each is replaced by an upgrade while the other runs.
const Protocol = 1

// Question is what the program reads from its standard input, in JSON.
type Question struct {
	Protocol int
	Time     time.Duration // of a processor that it may take
	Memory   uint64        // bytes that it may take
	Request  Request
}

// Wait is how long to wait for the answer: longer than Time, as a host that starts is busy with more than this.
func (q Question) Wait() time.Duration { return q.Time + time.Minute }

// Answer is what the program writes to its standard output, in JSON: one of its fields.
type Answer struct {
	Rendered *Rendered `json:",omitempty"`
	Fault    *Error    `json:",omitempty"` // something is wrong with a file of the user's
	Failure  string    `json:",omitempty"` // something else is wrong with what was to be rendered
	Unable   string    `json:",omitempty"` // why the program cannot tell: see ProgramError
}

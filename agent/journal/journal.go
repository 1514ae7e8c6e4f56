// Package journal provides a slog.Handler for systemd's journal. It uses the native protocol, with
// fields for filtering and with message IDs that journalctl -x explains.
package journal

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// DefaultSocket is the socket of journald.
const DefaultSocket = "/run/systemd/journal/socket"

// Options configure a Journal.
type Options struct {
	Socket   string       // "" = DefaultSocket
	Level    slog.Leveler // minimum level
	Program  string       // SYSLOG_IDENTIFIER of the agent's own lines; Envoy's have "envoy"
	Instance string       // OUTRIDER_INSTANCE; "" for the agent without an instance name
}

// Journal is a connection to journald. Lines wait in a bounded queue that one goroutine sends, so
// logging never blocks. Lines that do not fit into the queue are counted, and the count is logged
// later. The connection is renewed when journald restarts.
type Journal struct {
	options    Options
	epoch      atomic.Int64  // default epoch; -1 = none
	connection *net.UnixConn // nil if lost; owned by run
	abandon    context.CancelFunc
	ended      chan struct{} // closed when run has returned

	mu         sync.Mutex
	queue      [][]byte      // unsent entries, oldest first
	bytes      int           // size of the entries, including those that run is sending
	suppressed uint64        // lines dropped since the last report
	closed     bool          // Close was called
	wake       chan struct{} // capacity 1: there is something to do
}

// Open connects to journald. It fails if the socket is unavailable.
func Open(options Options) (*Journal, error) {
	options.Socket = cmp.Or(options.Socket, DefaultSocket)
	connection, err := dial(options.Socket)
	if err != nil {
		return nil, fmt.Errorf("connect to the journal: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	j := &Journal{options: options, connection: connection, abandon: cancel,
		ended: make(chan struct{}), wake: make(chan struct{}, 1)}
	j.epoch.Store(-1)
	go j.run(ctx)
	return j, nil
}

func dial(path string) (*net.UnixConn, error) {
	return net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
}

// Handler returns a handler with the level of the options.
func (j *Journal) Handler() slog.Handler { return j.HandlerAt(j.options.Level) }

// HandlerAt returns a handler with another level. Envoy's lines use it, because Envoy filters them
// itself.
func (j *Journal) HandlerAt(level slog.Leveler) slog.Handler {
	return &handler{journal: j, level: level}
}

// SetEpoch sets the default epoch of lines, usually the live one; -1 = none.
func (j *Journal) SetEpoch(number int) { j.epoch.Store(int64(number)) }

// Close sends queued lines until ctx ends, and disconnects. Later lines are dropped.
func (j *Journal) Close(ctx context.Context) {
	j.mu.Lock()
	j.closed = true
	j.mu.Unlock()
	j.notify()
	select {
	case <-j.ended:
	case <-ctx.Done():
	}
	j.abandon()
	<-j.ended
}

// constant appends the fields that all lines have.
func (j *Journal) constant(entry []byte, level int, component string) []byte {
	entry = appendNumber(entry, "PRIORITY", int64(level))
	program := j.options.Program
	if component == envoyComponent {
		program = envoyComponent
	}
	entry = appendField(entry, "SYSLOG_IDENTIFIER", program)
	entry = appendField(entry, fieldInstance, j.options.Instance)
	return appendField(entry, fieldComponent, component)
}

// Connected reports whether file is connected to the journal according to $JOURNAL_STREAM, so that
// output to it is logged there anyway.
func Connected(file *os.File, environment func(string) string) bool {
	var device, inode uint64 // systemd.exec(5)
	_, err := fmt.Sscanf(environment("JOURNAL_STREAM"), "%d:%d", &device, &inode)
	var status unix.Stat_t
	return err == nil && unix.Fstat(int(file.Fd()), &status) == nil &&
		status.Dev == device && status.Ino == inode
}

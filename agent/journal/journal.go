// Package journal provides a slog.Handler for systemd's journal. It uses the native protocol, with
// fields for filtering and with message IDs that journalctl -x explains.
package journal

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// defaultSocket is the socket of journald.
const defaultSocket = "/run/systemd/journal/socket"

// Options configure a Journal.
type Options struct {
	Socket   string       // "" = defaultSocket
	Level    slog.Leveler // minimum level
	Program  string       // SYSLOG_IDENTIFIER of the agent's own lines; Envoy's have "envoy"
	Instance string       // OUTRIDER_INSTANCE; "" for the agent without an instance name
}

// Journal is a connection to journald. The logging goroutine sends a line immediately if the socket
// accepts it; otherwise the line waits in a bounded queue that a background goroutine sends.
// Logging never blocks. Lines that do not fit into the queue are counted, and the count is logged
// later. The connection is renewed when journald restarts.
type Journal struct {
	options Options
	epoch   atomic.Int64 // default epoch; -1 = none
	closed  chan struct{}

	mu sync.Mutex
	// connection is nil if lost. It is used under mu or, while queue.busy, by the goroutine of the
	// method work.
	connection *net.UnixConn
	queue      queue
	ended      bool
	draining   bool          // Close was called
	wake       chan struct{} // capacity 1: the queue is not empty
}

// Open connects to journald. It fails if the socket is unavailable.
func Open(options Options) (*Journal, error) {
	if options.Socket == "" {
		options.Socket = defaultSocket
	}
	j := &Journal{options: options, closed: make(chan struct{}), wake: make(chan struct{}, 1)}
	j.epoch.Store(-1)
	connection, err := dial(options.Socket)
	if err != nil {
		return nil, fmt.Errorf("connect to the journal: %w", err)
	}
	j.connection = connection
	go j.work()
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
	if j.draining {
		j.mu.Unlock()
		return
	}
	j.draining = true
	busy := j.queue.busy
	j.mu.Unlock()
	if busy {
		select {
		case <-j.closed:
		case <-ctx.Done():
		}
	}
	j.mu.Lock()
	j.ended = true
	if j.connection != nil {
		_ = j.connection.Close() // also ends a blocked write in the method work
	}
	j.mu.Unlock()
	close(j.wake)
	<-j.closed
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

// isJournalStream reports whether file is connected to the journal according to $JOURNAL_STREAM, so
// that output to it is logged there anyway.
func isJournalStream(file *os.File, environment func(string) string) bool {
	var device, inode uint64 // systemd.exec(5)
	_, err := fmt.Sscanf(environment("JOURNAL_STREAM"), "%d:%d", &device, &inode)
	var status unix.Stat_t
	return err == nil && unix.Fstat(int(file.Fd()), &status) == nil &&
		status.Dev == device && status.Ino == inode
}

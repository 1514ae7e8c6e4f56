// Package journal logs to systemd's journal: a slog.Handler in its native protocol, with the fields users filter by and message
// IDs that journalctl -x explains.
package journal

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
)

// DefaultSocket is where journald listens.
const DefaultSocket = "/run/systemd/journal/socket"

// Options of a Journal.
type Options struct {
	Socket   string       // "" = DefaultSocket
	Level    slog.Leveler // what is below is not logged
	Program  string       // SYSLOG_IDENTIFIER of the agent's own lines; Envoy's have "envoy"
	Instance string       // OUTRIDER_INSTANCE; "" for the one agent of a host
}

// Journal is a connection to the journal. Lines are sent at once, by whoever logs them, as long as the journal takes them; what it
// does not take waits in a bounded queue for a goroutine of the journal's own. Nobody ever waits for it, and what the queue
// cannot hold is counted and told. A journald that is restarted is found again.
type Journal struct {
	options Options
	epoch   atomic.Int64 // of lines that name none; -1 = none
	closed  chan struct{}

	mu         sync.Mutex
	connection *net.UnixConn // nil: lost. It is used under the lock or, while the queue is busy, by the goroutine
	queue      queue
	ended      bool
	draining   bool          // Close was called
	wake       chan struct{} // holds one: the queue holds something
}

// Open connects to the journal; an error says that there is none.
func Open(options Options) (*Journal, error) {
	if options.Socket == "" {
		options.Socket = DefaultSocket
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

// Handler is the slog.Handler.
func (j *Journal) Handler() slog.Handler { return j.HandlerAt(j.options.Level) }

// HandlerAt is the same with a level of its own: Envoy has chosen already which of its lines are logged.
func (j *Journal) HandlerAt(level slog.Leveler) slog.Handler {
	return &handler{journal: j, level: level}
}

// SetEpoch sets the epoch of lines that name none: the one that is live, or -1.
func (j *Journal) SetEpoch(number int) { j.epoch.Store(int64(number)) }

// Close sends what waits as long as ctx lasts, and ends. Lines that come later are lost.
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
		_ = j.connection.Close() // ends a goroutine that waits for it, too
	}
	j.mu.Unlock()
	close(j.wake)
	<-j.closed
}

// constant appends the fields that every line has.
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

// Connected is whether what a file writes to is the journal, as systemd says in $JOURNAL_STREAM: a program that logs there would
// be in the journal anyway.
func Connected(file *os.File, environment func(string) string) bool {
	device, inode, ok := stream(environment("JOURNAL_STREAM"))
	if !ok {
		return false
	}
	foundDevice, foundInode, err := identity(file)
	return err == nil && device == foundDevice && inode == foundInode
}

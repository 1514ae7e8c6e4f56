package keeper

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// pipeBytes is the size asked for a log pipe: room for what an Envoy at debug level says while the
// keeper replaces itself.
const pipeBytes = 256 << 10

// logPipe reads what one Envoy writes. Nothing in it waits for an agent: an unread pipe would stop
// Envoy, data plane and all.
type logPipe struct {
	from   origin
	file   *os.File
	lines  *backlog
	closed chan struct{} // when every writer has closed its end; nothing comes any more

	mu       sync.Mutex
	splitter lineSplitter
	last     tail
	paused   chan struct{} // closed when the present follow has returned because of pause
}

// newPipe returns the keeper's end, not blocking, and the child's, blocking.
func newPipe() (read, write *os.File, err error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("make a log pipe: %w", err)
	}
	// Best effort: the system's limit of pipe pages of a user may be lower.
	_, _ = unix.FcntlInt(uintptr(ends[0]), unix.F_SETPIPE_SZ, pipeBytes)
	if err := unix.SetNonblock(ends[0], true); err != nil {
		_ = unix.Close(ends[0])
		_ = unix.Close(ends[1])
		return nil, nil, fmt.Errorf("make a log pipe: %w", err)
	}
	return os.NewFile(uintptr(ends[0]), "log pipe"), os.NewFile(uintptr(ends[1]), "log pipe"), nil
}

func newLogPipe(from origin, file *os.File, lines *backlog) *logPipe {
	return &logPipe{from: from, file: file, lines: lines, closed: make(chan struct{})}
}

// start follows the pipe in a goroutine of its own.
func (p *logPipe) start() {
	p.mu.Lock()
	p.paused = make(chan struct{})
	p.mu.Unlock()
	go p.follow(p.paused)
}

// follow reads until every writer has gone, or pause.
func (p *logPipe) follow(paused chan<- struct{}) {
	buffer := make([]byte, 16<<10)
	for {
		n, err := p.file.Read(buffer)
		p.mu.Lock()
		if n > 0 {
			p.splitter.write(buffer[:n], p.emit)
		}
		if err == nil {
			p.mu.Unlock()
			continue
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			p.mu.Unlock()
			close(paused)
			return
		}
		if len(p.splitter.partial) > 0 {
			p.splitter.end(p.emit)
		}
		p.mu.Unlock()
		_ = p.file.Close()
		close(p.closed)
		return
	}
}

func (p *logPipe) emit(line string) {
	p.last.add(line)
	p.lines.add(p.from, line)
}

// lastLines are a copy.
func (p *logPipe) lastLines() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.last.lines)
}

// pause stops reading, so that the next keeper image goes on exactly where this one stopped; resume
// goes on here.
func (p *logPipe) pause() {
	p.mu.Lock()
	paused := p.paused
	p.mu.Unlock()
	if p.file.SetReadDeadline(time.Unix(1, 0)) != nil {
		<-p.closed // it has ended, or is about to
		return
	}
	select {
	case <-paused:
	case <-p.closed:
	}
}

func (p *logPipe) resume() {
	if p.file.SetReadDeadline(time.Time{}) == nil {
		p.start()
	}
}

// ended tells whether all writers have gone.
func (p *logPipe) ended() bool {
	select {
	case <-p.closed:
		return true
	default:
		return false
	}
}

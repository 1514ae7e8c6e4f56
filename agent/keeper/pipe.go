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

// pipeBytes is the requested size of a log pipe: enough for an Envoy at debug level while the
// keeper replaces itself.
const pipeBytes = 256 << 10

// logPipe reads the output of one Envoy, also while no agent is connected: a full pipe would block
// the threads of Envoy that log.
type logPipe struct {
	from   origin
	file   *os.File
	lines  *backlog
	closed chan struct{} // closed when every writer has closed its end

	mu       sync.Mutex
	splitter lineSplitter
	last     tail
	paused   chan struct{} // closed when pause has made readLines return
}

// newPipe returns the keeper's end, non-blocking, and the child's end, blocking.
func newPipe() (read, write *os.File, err error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("make a log pipe: %w", err)
	}
	// Best effort: the limit of pipe pages per user may be lower.
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

// start reads the pipe in a new goroutine.
func (p *logPipe) start() {
	p.mu.Lock()
	p.paused = make(chan struct{})
	p.mu.Unlock()
	go p.readLines(p.paused)
}

// readLines reads until every writer has closed its end, or until pause.
func (p *logPipe) readLines(paused chan<- struct{}) {
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

// lastLines returns a copy of the last lines.
func (p *logPipe) lastLines() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.last.lines)
}

// pause stops reading, so that the re-executed keeper can continue at the same byte. resume
// continues reading if the re-execution fails.
func (p *logPipe) pause() {
	p.mu.Lock()
	paused := p.paused
	p.mu.Unlock()
	if p.file.SetReadDeadline(time.Unix(1, 0)) != nil {
		<-p.closed // the pipe is closed: wait until readLines has returned
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

// ended reports whether all writers have closed their ends.
func (p *logPipe) ended() bool {
	select {
	case <-p.closed:
		return true
	default:
		return false
	}
}

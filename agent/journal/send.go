package journal

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Limits of the queue in bytes. Only warnings and more severe lines may use the reserve, so that
// less severe ones cannot displace them.
const (
	queueSize    = 1 << 20
	queueReserve = 128 << 10

	priorityWarning = 4
)

const (
	reconnectPause = 100 * time.Millisecond
	// stuckTime is the time without progress after which the connection is renewed.
	stuckTime = time.Second
)

// send queues an entry, or counts it as suppressed if the queue is full.
func (j *Journal) send(entry []byte, level int) {
	limit := queueSize
	if level <= priorityWarning {
		limit += queueReserve
	}
	j.mu.Lock()
	switch {
	case j.closed:
	case j.bytes+len(entry) > limit:
		j.suppressed++
	default:
		j.queue = append(j.queue, entry)
		j.bytes += len(entry)
	}
	j.mu.Unlock()
	j.notify()
}

func (j *Journal) notify() {
	select {
	case j.wake <- struct{}{}:
	default: // run is about to look
	}
}

// run sends queued entries until Close, or until ctx ends.
func (j *Journal) run(ctx context.Context) {
	defer close(j.ended)
	defer func() {
		if j.connection != nil {
			_ = j.connection.Close()
		}
	}()
	for range j.wake {
		entries, closed := j.take()
		for len(entries) > 0 {
			for _, entry := range entries {
				if !j.deliver(ctx, entry) {
					return
				}
			}
			entries, closed = j.take()
		}
		if closed {
			return
		}
	}
}

// take empties the queue. If lines were suppressed, the last entry reports their number.
func (j *Journal) take() (entries [][]byte, closed bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	entries, j.queue = j.queue, nil
	if j.suppressed > 0 {
		text := fmt.Sprintf("%d lines were suppressed: the journal did not take them as fast as "+
			"they came", j.suppressed)
		report := j.constant(nil, priorityWarning, ownComponent)
		report = appendNumber(report, "OUTRIDER_SUPPRESSED", int64(j.suppressed))
		report = appendField(report, "MESSAGE", text)
		entries = append(entries, report)
		j.bytes += len(report)
		j.suppressed = 0
	}
	return entries, j.closed
}

// deliver sends an entry and reconnects as often as necessary. It returns false if ctx ended first.
func (j *Journal) deliver(ctx context.Context, entry []byte) bool {
	for {
		err := j.write(ctx, entry)
		switch {
		case err == nil, permanent(err):
			j.mu.Lock()
			j.bytes -= len(entry)
			j.mu.Unlock()
			return true
		case ctx.Err() != nil:
			return false
		}
		if j.connection != nil {
			_ = j.connection.Close()
		}
		time.Sleep(reconnectPause)
		if j.connection, err = dial(j.options.Socket); err != nil {
			j.connection = nil
		}
	}
}

// permanent reports whether an error concerns the entry rather than the connection, so that a retry
// is useless.
func permanent(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES)
}

// write sends an entry as one datagram or, if it is too long, as a sealed memfd. It blocks for up
// to stuckTime while the socket is full.
func (j *Journal) write(ctx context.Context, entry []byte) error {
	if j.connection == nil {
		return net.ErrClosed
	}
	connection := j.connection
	if err := connection.SetWriteDeadline(time.Now().Add(stuckTime)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = connection.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	_, err := connection.Write(entry)
	if !errors.Is(err, unix.EMSGSIZE) && !errors.Is(err, unix.ENOBUFS) {
		return err
	}
	file, err := memory(entry)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return sendFile(connection, file)
}

// sendFile sends a file's descriptor alone (net.UnixConn refuses to on a connected socket).
func sendFile(connection *net.UnixConn, file *os.File) error {
	raw, err := connection.SyscallConn()
	if err != nil {
		return err
	}
	var failure error
	err = raw.Write(func(socket uintptr) bool {
		failure = unix.Sendmsg(int(socket), nil, unix.UnixRights(int(file.Fd())), nil,
			unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		return !errors.Is(failure, unix.EAGAIN)
	})
	return errors.Join(err, failure)
}

// memory returns a sealed memfd with the entry. journald maps files that can no longer change.
func memory(entry []byte) (*os.File, error) {
	number, err := unix.MemfdCreate("outrider-journal", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make a file for a long line: %w", err)
	}
	file := os.NewFile(uintptr(number), "outrider-journal")
	if _, err := file.Write(entry); err != nil {
		return nil, errors.Join(fmt.Errorf("write a long line: %w", err), file.Close())
	}
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(number), unix.F_ADD_SEALS, seals); err != nil {
		return nil, errors.Join(fmt.Errorf("seal a long line: %w", err), file.Close())
	}
	return file, nil
}

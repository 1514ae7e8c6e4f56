package journal

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	reconnectPause = 100 * time.Millisecond
	// stuckTime is the time without progress after which the connection is renewed.
	stuckTime = time.Second
)

// errFull reports that journald's socket buffer is full.
var errFull = errors.New("journald's socket buffer is full")

// send sends an entry immediately, or queues a copy. It returns entry, whose memory may be reused.
func (j *Journal) send(entry []byte, level int) []byte {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case j.ended:
		return entry
	case j.queue.busy || j.connection == nil:
		j.queue.push(entry, level)
	default:
		err := write(j.connection, entry, false)
		if err == nil {
			return entry
		}
		if permanent(err) {
			j.queue.lose()
		} else {
			j.queue.push(entry, level)
		}
	}
	select {
	case j.wake <- struct{}{}:
	default:
	}
	return entry
}

// permanent reports whether an error concerns the entry rather than the connection, so that a retry
// is useless.
func permanent(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES)
}

// work sends queued entries until Close. While the queue is busy no other goroutine sends, which
// preserves the order.
func (j *Journal) work() {
	defer close(j.closed)
	for range j.wake {
		for {
			j.mu.Lock()
			entries, suppressed := j.queue.take()
			var report []byte
			if suppressed > 0 {
				report = j.suppressedEntry(suppressed)
				j.queue.bytes += len(report)
			}
			busy, draining := j.queue.busy, j.draining
			j.mu.Unlock()
			if !busy && draining {
				return
			}
			if !busy {
				break
			}
			for _, entry := range entries {
				if !j.insist(entry, true) {
					return
				}
			}
			if report != nil && !j.insist(report, false) {
				return
			}
		}
	}
}

// suppressedEntry returns the entry that reports suppressed lines.
func (j *Journal) suppressedEntry(suppressed uint64) []byte {
	text := fmt.Sprintf(
		"%d lines were suppressed: the journal did not take them as fast as they came", suppressed)
	entry := j.constant(nil, priorityWarning, ownComponent)
	return appendField(appendNumber(entry, "OUTRIDER_SUPPRESSED", int64(suppressed)),
		"MESSAGE", text)
}

// insist sends an entry and reconnects as often as necessary. It returns false if the Journal is
// closed. With counted, an entry that can never be sent counts as suppressed.
func (j *Journal) insist(entry []byte, counted bool) bool {
	for {
		j.mu.Lock()
		connection, ended := j.connection, j.ended
		j.mu.Unlock()
		if ended {
			return false
		}
		if connection != nil {
			err := write(connection, entry, true)
			if err == nil || permanent(err) {
				j.mu.Lock()
				j.queue.bytes = max(0, j.queue.bytes-len(entry))
				if err != nil && counted {
					j.queue.suppressed++
				}
				j.mu.Unlock()
				return true
			}
			_ = connection.Close()
		}
		fresh, err := dial(j.options.Socket)
		j.mu.Lock()
		j.connection = fresh
		if j.ended && err == nil {
			_ = fresh.Close()
		}
		j.mu.Unlock()
		if err != nil {
			time.Sleep(reconnectPause)
		}
	}
}

// write sends an entry as one datagram or, if it is too long, as a sealed memfd. With wait it
// blocks for up to stuckTime; otherwise it returns errFull if the socket is full.
func write(connection *net.UnixConn, entry []byte, wait bool) error {
	err := writeMessage(connection, entry, nil, wait)
	if !errors.Is(err, unix.EMSGSIZE) && !errors.Is(err, unix.ENOBUFS) {
		return err
	}
	file, err := memory(entry)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return writeMessage(connection, nil, unix.UnixRights(int(file.Fd())), wait)
}

func writeMessage(connection *net.UnixConn, entry, rights []byte, wait bool) error {
	raw, err := connection.SyscallConn()
	if err != nil {
		return err
	}
	if wait {
		if err := connection.SetWriteDeadline(time.Now().Add(stuckTime)); err != nil {
			return err
		}
	} else if err := connection.SetWriteDeadline(time.Time{}); err != nil {
		return err
	}
	var sent error
	err = raw.Write(func(fd uintptr) bool {
		for {
			_, sent = unix.SendmsgN(int(fd), entry, rights, nil,
				unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
			if !errors.Is(sent, unix.EINTR) {
				return !wait || !errors.Is(sent, unix.EAGAIN)
			}
		}
	})
	switch {
	case err != nil:
		return err
	case errors.Is(sent, unix.EAGAIN):
		return errFull
	default:
		return sent
	}
}

// memory returns a sealed memfd with the entry. journald maps a sealed file instead of copying it.
func memory(entry []byte) (*os.File, error) {
	number, err := unix.MemfdCreate("outrider-journal", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("create a memfd for a long log line: %w", err)
	}
	file := os.NewFile(uintptr(number), "outrider-journal")
	if _, err := file.Write(entry); err != nil {
		return nil, errors.Join(fmt.Errorf("write a long log line to its memfd: %w", err),
			file.Close())
	}
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(number), unix.F_ADD_SEALS, seals); err != nil {
		return nil, errors.Join(fmt.Errorf("seal the memfd of a long log line: %w", err),
			file.Close())
	}
	return file, nil
}

// Package fdstore keeps sockets open in systemd's file descriptor store (FileDescriptorStoreMax=)
// while their service restarts, even after a crash. systemd closes them when the service stops or
// has finally failed.
package fdstore

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"

	"github.com/coreos/go-systemd/v22/activation"
	"golang.org/x/sys/unix"
)

// Store is the file descriptor store of this process's service. A nil Store is empty and stores
// nothing. Add and Remove may be called concurrently.
type Store struct {
	address   string // address of the service manager's socket; "" = no service manager
	inherited []*os.File
}

// Open returns the store of this process's service. It removes LISTEN_FDS from the environment.
func Open() *Store { return New(os.Getenv("NOTIFY_SOCKET"), activation.Files(true)) }

// New returns a store that uses the service manager's socket and owns the inherited files, with
// their names. It removes them from the service manager: if the process crashes before it adds them
// again, the kernel closes them, so that peers do not wait for a process that crashes at each
// start.
func New(address string, inherited []*os.File) *Store {
	s := &Store{address: address, inherited: inherited}
	for _, file := range inherited {
		// otherwise the service manager keeps a duplicate open until the service has stopped
		_ = s.Remove(file.Name())
	}
	return s
}

// Take removes the inherited files of a name from the store and returns them. The caller must close
// them.
func (s *Store) Take(name string) (files []*os.File) {
	if s == nil {
		return nil
	}
	s.inherited = slices.DeleteFunc(s.inherited, func(f *os.File) bool {
		if f.Name() == name {
			files = append(files, f)
		}
		return f.Name() == name
	})
	return files
}

// Add stores duplicates of sockets under a name, in addition to those already stored.
func (s *Store) Add(name string, sockets ...syscall.Conn) error {
	for _, socket := range sockets {
		raw, err := socket.SyscallConn()
		if err != nil {
			return err
		}
		// FDPOLL=0 makes systemd keep sockets in an error state.
		message := "FDSTORE=1\nFDPOLL=0\nFDNAME=" + name
		var failure error
		err = raw.Control(func(fd uintptr) { failure = s.send(message, unix.UnixRights(int(fd))) })
		if err = errors.Join(err, failure); err != nil {
			return fmt.Errorf("store a socket in systemd: %w", err)
		}
	}
	return nil
}

// Remove removes the sockets of a name from the service manager.
func (s *Store) Remove(name string) error {
	if err := s.send("FDSTOREREMOVE=1\nFDNAME="+name, nil); err != nil {
		return fmt.Errorf("remove a socket from systemd: %w", err)
	}
	return nil
}

// CloseRemaining closes the inherited files that Take has not returned.
func (s *Store) CloseRemaining() (err error) {
	if s == nil {
		return nil
	}
	for _, file := range s.inherited {
		err = errors.Join(err, file.Close())
	}
	s.inherited = nil
	return err
}

func (s *Store) send(message string, rights []byte) error {
	if s == nil || s.address == "" {
		return nil
	}
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer func() { _ = unix.Close(socket) }()
	if err := unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_SNDTIMEO,
		&unix.Timeval{Sec: 1}); err != nil { // systemd may be too busy to receive
		return os.NewSyscallError("setsockopt", err)
	}
	return os.NewSyscallError("sendmsg", unix.Sendmsg(socket, []byte(message), rights,
		&unix.SockaddrUnix{Name: s.address}, 0))
}

package keeper

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

// Serve runs a keeper until it is shut down. It must be called by the main goroutine, locked to the
// main thread by an init function. After a re-execution, state is the memory file with the state
// that the keeper saved before; otherwise nil.
func Serve(options Options, state *os.File) error {
	s := newServer(options)
	signals := catchSignals()
	defer signal.Stop(signals)
	unblockSignals()

	var err error
	if s.program, err = os.Executable(); err != nil {
		return fmt.Errorf("find the keeper's own program: %w", err)
	}
	if state != nil {
		err = s.restore(state)
	} else {
		err = s.prepare()
	}
	if err != nil {
		return err
	}
	s.users = []uint32{uint32(os.Geteuid())}
	if options.AllowedUID >= 0 {
		s.users = append(s.users, uint32(options.AllowedUID))
	}
	s.path = s.listener.Addr().String()
	if socket, ok := s.socketOwner(); ok {
		s.users = append(s.users, socket)
	}

	stop := make(chan struct{})
	handled := make(chan struct{})
	go func() {
		defer close(handled)
		s.handleSignals(signals, stop)
	}()
	s.mu.Lock()
	s.reap() // processes that ended during the re-execution
	s.updateIdleTimer()
	s.mu.Unlock()
	// The socket listens: clients can connect although accept has not been called.
	s.notify(daemon.SdNotifyReady)
	go s.accept()
	err = s.main.run()
	s.serving.Wait() // connections end once their killed commands are reaped
	close(stop)
	<-handled
	return err
}

// catchSignals subscribes to all signals that a keeper may get. SIGPIPE and SIGHUP have no effect;
// they are caught and not ignored, because Envoy would inherit an ignored signal.
func catchSignals() chan os.Signal {
	signals := make(chan os.Signal, 64)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGPIPE, unix.SIGUSR2,
		unix.SIGCHLD)
	return signals
}

// prepare creates the folder, the lock and the socket of a keeper that is not re-executed.
func (s *server) prepare() error {
	o := s.options
	folder, err := filepath.Abs(o.Folder)
	if err != nil {
		return fmt.Errorf("prepare the keeper's folder: %w", err)
	}
	if s.lock, err = lockFolder(folder); err != nil {
		return err
	}
	groups, err := os.Getgroups()
	if err != nil {
		return fmt.Errorf("read the group IDs of the keeper's process: %w", err)
	}
	s.info = Info{
		Protocol: protocolVersion, Version: o.Version, PID: os.Getpid(), UID: os.Geteuid(),
		GID: os.Getegid(), Groups: groups,
		Started: time.Now(), Folder: folder, SocketPath: filepath.Join(folder, "hot"),
	}
	if err := checkSocketPaths(s.info); err != nil {
		return err
	}
	if s.info.BaseID, err = s.memory.choose(o.BaseID, folder); err != nil {
		return err
	}
	if o.Listener != nil {
		s.listener, err = listenerOf(o.Listener)
	} else {
		s.listener, err = listenPrivately(o.Socket)
	}
	return err
}

// socketOwner returns the owner of the listening socket: under systemd its SocketUser=, the agent's
// user.
func (s *server) socketOwner() (uint32, bool) {
	var status unix.Stat_t
	if unix.Stat(s.path, &status) != nil {
		return 0, false
	}
	return status.Uid, true
}

func (s *server) handleSignals(signals <-chan os.Signal, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case received := <-signals:
			switch received {
			case unix.SIGCHLD:
				s.mu.Lock()
				s.reap()
				s.mu.Unlock()
			case unix.SIGTERM, unix.SIGINT:
				s.notify(daemon.SdNotifyStopping)
				go s.shutdown()
			case unix.SIGUSR2:
				go func() {
					if err := s.reexecute(); err != nil {
						s.logf("%v", err)
					}
				}()
			}
		}
	}
}

// notify sends a state to systemd if it runs the keeper.
func (s *server) notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		s.logf("notify systemd: %v", err)
	}
}

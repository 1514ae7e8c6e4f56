package capture

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	osuser "os/user"
	"strconv"
	"syscall"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/fdstore"
	"outrider.org/outrider/agent/reexec"
)

// Exit codes.
const (
	exitFailed = 1
	exitUsage  = 2
)

// Flags by which outrider-capture passes its descriptors when it executes an upgraded program.
const (
	flagListen = "listen-fd"
	flagRules  = "rules-fd"
	flagNAT    = "nat-fd"
	flagDNS    = "dns-fd"
)

func descriptorFlags() []string { return []string{flagListen, flagRules, flagNAT, flagDNS} }

// Main runs the program outrider-capture and returns its exit code.
func Main(arguments []string, version string, stdout, stderr io.Writer) int {
	o := options{version: version, log: stderr}
	flags := flag.NewFlagSet("outrider-capture", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.instance, "instance", "", "`name` of the instance")
	flags.StringVar(&o.folder, "folder", os.Getenv("RUNTIME_DIRECTORY"),
		"`folder` for the state (default $RUNTIME_DIRECTORY)")
	flags.StringVar(&o.resolvConf, "resolv-conf", resolvConf,
		"`file` of the resolvers whose queries are redirected")
	envoy := flags.String("envoy-user", "outrider-envoy", "Envoy's `user`")
	agent := flags.String("agent-user", "outrider", "the agent's `user`, who may connect")
	socket := flags.String("socket", "", "`path` of the socket, without one of systemd")
	fds := map[string]*int{}
	for _, name := range descriptorFlags() {
		fds[name] = flags.Int(name, -1, "a descriptor of the previous image (internal)")
	}
	showVersion := flags.Bool("version", false, "print the version")
	switch err := flags.Parse(arguments); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return exitUsage
	case *showVersion:
		_, _ = fmt.Fprintf(stdout, "outrider-capture %s (protocol %d)\n", version, protocolVersion)
		return 0
	case flags.NArg() > 0 || o.folder == "" || o.instance != "" &&
		!instanceName.MatchString(o.instance):
		_, _ = fmt.Fprintln(stderr, "outrider-capture: usage: -folder FOLDER [-instance NAME]")
		return exitUsage
	}
	fail := func(err error) int {
		_, _ = fmt.Fprintf(stderr, "outrider-capture: %v\n", err)
		return exitFailed
	}
	var err error
	if o.users.Envoy, err = userID(*envoy); err != nil {
		return fail(err)
	}
	if o.users.Agent, err = userID(*agent); err != nil {
		return fail(err)
	}
	inherited, err := inherit(fds, *socket)
	if err != nil {
		return fail(err)
	}
	if err := serveCommand(o, inherited); err != nil {
		return fail(err)
	}
	return 0
}

// userID returns the UID of a user that is given by name or UID.
func userID(name string) (uint32, error) {
	if id, err := strconv.ParseUint(name, 10, 32); err == nil {
		return uint32(id), nil
	}
	found, err := osuser.Lookup(name)
	if err != nil {
		return 0, fmt.Errorf("user %s: %w", name, err)
	}
	id, err := strconv.ParseUint(found.Uid, 10, 32)
	return uint32(id), err
}

// inheritance holds the descriptors passed by systemd, or by outrider-capture's program before an
// upgrade.
type inheritance struct {
	listener        *net.UnixListener
	rules, nat, dns *ownerSocket
}

// inherit takes over the passed descriptors, or listens on path if there are none.
func inherit(fds map[string]*int, path string) (in inheritance, err error) {
	files := map[string]*os.File{}
	for name, fd := range fds {
		if *fd >= 0 {
			files[name] = reexec.InheritedFile(*fd, name)
		}
	}
	if files[flagListen] == nil {
		for _, file := range activation.Files(true) {
			if file.Name() == storedNAT {
				files[flagNAT] = file
			} else {
				files[flagListen] = file
			}
		}
	}
	owner := func(file *os.File) *ownerSocket {
		if file == nil {
			return nil
		}
		return &ownerSocket{file: file, owned: true}
	}
	in.rules, in.nat = owner(files[flagRules]), owner(files[flagNAT])
	in.dns = owner(files[flagDNS])
	if files[flagListen] == nil {
		if path == "" {
			return in, errors.New("no listening socket: systemd passes none, and -socket is not set")
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return in, err
		}
		in.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		return in, err
	}
	listener, err := net.FileListener(files[flagListen])
	_ = files[flagListen].Close()
	if err != nil {
		return in, fmt.Errorf("inherited socket: %w", err)
	}
	var ok bool
	if in.listener, ok = listener.(*net.UnixListener); !ok {
		return in, errors.New("the inherited socket is not a Unix socket")
	}
	return in, nil
}

func serveCommand(o options, in inheritance) error {
	h, err := newHelper(o)
	if err != nil {
		return err
	}
	h.rules, h.nat, h.dns.rules = in.rules, in.nat, in.dns
	h.store = fdstore.New(os.Getenv("NOTIFY_SOCKET"), nil)
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	upgrade := make(chan os.Signal, 1)
	signal.Notify(upgrade, unix.SIGUSR2)
	in.listener.SetUnlinkOnClose(false)
	go h.accept(ctx, in.listener, []uint32{0, o.users.Agent, uint32(os.Geteuid())})
	h.notify(daemon.SdNotifyReady)
	h.run(ctx, func() {
		restore := reexec.Ignore(unix.SIGUSR2)
		if err := reexecute(h, in.listener); err != nil {
			h.logf("cannot replace outrider-capture: %v", err)
		}
		restore()
	}, upgrade)
	h.quit()
	return in.listener.Close()
}

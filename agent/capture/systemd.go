package capture

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"outrider.org/outrider/agent/reexec"
)

// storedNAT is the name of the nat table's socket in systemd's file descriptor store.
const storedNAT = "nat"

// versionTime limits the run of the installed program that reports its version. It is less than
// WatchdogSec= of the unit.
const versionTime = 2 * time.Second

// reexecute replaces the running program by the installed one. The tables remain, because their
// sockets are inherited. It returns only after a failure, which changes nothing.
func reexecute(h *helper, listener *net.UnixListener) error {
	program, err := reexec.InstalledProgram()
	if err != nil {
		return err
	}
	h.notify(daemon.SdNotifyWatchdog) // the check of the program may take up to versionTime
	ctx, cancel := context.WithTimeout(context.Background(), versionTime)
	defer cancel()
	if out, err := exec.CommandContext(ctx, program, "-version").CombinedOutput(); err != nil {
		return fmt.Errorf("cannot run %s: %w: %s", program, err, out)
	}
	passed := map[string]syscall.Conn{flagListen: listener}
	for name, owner := range map[string]*ownerSocket{flagRules: h.rules, flagNAT: h.nat,
		flagDNS: h.dns.rules} {
		if owner != nil {
			passed[name] = owner.file
		}
	}
	var next reexec.NextImage
	defer next.Close()
	descriptors := map[string]int{}
	for name, file := range passed {
		if descriptors[name], err = next.Add(file); err != nil {
			return err
		}
	}
	return next.Exec(program, descriptors, descriptorFlags()...)
}

// Command machine boots a machine with a real systemd, runs a command in it, by default a shell,
// and powers it off:
//
//	go run ./scripts/machine/cmd/machine [-bind FOLDER] [command argument …]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"time"

	"outrider.org/outrider/scripts/machine"
)

// powerOffTime is the default of systemd's DefaultTimeoutStopSec=.
const powerOffTime = 90 * time.Second

func main() {
	var options machine.Options
	flag.Func("bind",
		"a `folder` to be seen in the machine, read-only (FOLDER or FOLDER:WHERE; may be repeated)",
		func(folder string) error {
			options.BindMounts = append(options.BindMounts, folder)
			return nil
		})
	flag.Parse()
	err := run(options, flag.Args())
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "machine:", err)
		os.Exit(1)
	}
}

func run(options machine.Options, command []string) error {
	ctx := context.Background()
	start := time.Now()
	m, err := machine.Boot(ctx, options)
	if err != nil {
		return err
	}
	if len(command) == 0 {
		command = []string{"bash", "-l"}
		fmt.Fprintf(os.Stderr, "machine: %s is up after %v; the end of this shell powers it off\n",
			m.Name(), time.Since(start).Round(time.Millisecond))
	}
	inside := m.Command(ctx, command[0], command[1:]...)
	inside.Stdin, inside.Stdout, inside.Stderr = os.Stdin, os.Stdout, os.Stderr
	failed := inside.Run()
	limited, cancel := context.WithTimeout(ctx, powerOffTime)
	defer cancel()
	return errors.Join(failed, m.PowerOff(limited))
}

package keeper

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
)

// fake is the main function of a program that the keeper starts in place of Envoy. Its arguments
// are the steps that it executes.
func fake(steps []string) int {
	out := bufio.NewWriter(os.Stderr)
	signals := make(chan os.Signal, 1)
	var name string
	var sockets int
	var listeners []net.Listener
	for _, step := range steps {
		verb, value, _ := strings.Cut(step, "=")
		number, _ := strconv.Atoi(value)
		switch verb {
		case "say":
			_, _ = fmt.Fprintln(out, value)
		case "lines": // prints the given number of lines, numbered
			for i := range number {
				_, _ = fmt.Fprintf(out, "line %d\n", i)
			}
		case "long": // prints one line with the given number of bytes
			_, _ = fmt.Fprintln(out, strings.Repeat("x", number))
		case "unended":
			_, _ = fmt.Fprint(out, value)
		case "environment":
			_, _ = fmt.Fprintln(out, strings.Join(os.Environ(), " "))
		case "folder":
			folder, _ := os.Getwd()
			_, _ = fmt.Fprintln(out, folder)
		case "descriptors":
			entries, _ := os.ReadDir("/proc/self/fd")
			for _, e := range entries {
				target, err := os.Readlink("/proc/self/fd/" + e.Name())
				if err == nil {
					_, _ = fmt.Fprintln(out, e.Name(), target)
				}
			}
		case "stdout":
			_, _ = fmt.Fprint(os.Stdout, strings.Repeat("o", number))
		case "flood": // prints lines without end
			for i := 0; ; i++ {
				if _, err := fmt.Fprintf(out, "flood %d %s\n", i,
					strings.Repeat("y", 100)); err != nil {
					return 9
				}
			}
		case "name": // sets the name with which listeners answer
			name = value
		case "sockets": // sets the number of sockets per address
			sockets = number
		case "listen": // listens on an address that others may share
			for range sockets {
				listener, err := sharedListener(value)
				if err != nil {
					_, _ = fmt.Fprintln(out, err)
					return 8
				}
				listeners = append(listeners, listener)
				go answer(listener, name)
			}
		case "close":
			for _, listener := range listeners {
				_ = listener.Close()
			}
		case "exit":
			_ = out.Flush()
			return number
		case "kill":
			_ = out.Flush()
			_ = syscall.Kill(os.Getpid(), syscall.Signal(number))
		case "handle": // handles SIGTERM from now on, and prints the value
			signal.Notify(signals, syscall.SIGTERM)
			_, _ = fmt.Fprintln(out, value)
		case "wait": // waits for SIGTERM, which ends the program if it is not handled
			_ = out.Flush()
			<-signals
		case "stay": // never ends
			_ = out.Flush()
			for {
				<-signals
			}
		}
		_ = out.Flush()
	}
	return 0
}

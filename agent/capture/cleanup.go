package capture

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// StateFileName is the name of the state file of outrider-capture.
const StateFileName = "state.json"

// Cleanup deletes the tables of an outrider-capture that no longer runs, and its state file in
// folder, which may be nil. It returns the names of the deleted tables. The kernel lets nobody
// delete a table that a running outrider-capture owns; if such a table exists, the error names the
// fix. The table that rejects connections has no owner, but a running outrider-capture restores it.
func Cleanup(instance string, folder *os.Root) ([]string, error) {
	socket, err := newOwnerSocket()
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EAFNOSUPPORT) ||
		errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, nil // this user cannot have created tables, or the kernel lacks nftables
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = socket.Close() }()
	names, err := socket.tables()
	if err != nil {
		return nil, nil //nolint:nilerr // a kernel without nftables
	}
	var done, held []string
	for _, name := range []string{TableName(instance), closedName(instance), dnsName(instance),
		natName(instance)} {
		if !slices.Contains(names, name) {
			continue
		}
		switch err := socket.remove(name); {
		case err == nil:
			done = append(done, name)
		case !errors.Is(err, unix.EPERM):
			return done, err
		// A remaining nat table is no error: it captures nothing, and systemd may hold its socket
		// after outrider-capture's end.
		case name != natName(instance):
			held = append(held, name)
		}
	}
	if held != nil {
		return done, fmt.Errorf("table inet %s belongs to an outrider-capture that does not answer; "+
			"run \"systemctl kill -s KILL %s\", then \"outrider cleanup\" again",
			strings.Join(held, ", "), unitOf(instance))
	}
	// Another running instance may need the policy routes.
	if !slices.ContainsFunc(names, func(name string) bool {
		return strings.HasPrefix(name, "outrider-nat") && name != natName(instance)
	}) {
		if err := policyRoutes(false); err != nil {
			return done, err
		}
	}
	if folder == nil {
		return done, nil
	}
	if err := folder.Remove(StateFileName); err != nil && !errors.Is(err, os.ErrNotExist) {
		return done, err
	}
	return done, nil
}

// RejectsConnections reports whether the table exists that rejects connections while Envoy does not
// serve.
func RejectsConnections(instance string) bool {
	socket, err := newOwnerSocket()
	if err != nil {
		return false
	}
	defer func() { _ = socket.Close() }()
	names, err := socket.tables()
	return err == nil && slices.Contains(names, closedName(instance))
}

// unitOf returns outrider-capture's unit.
func unitOf(instance string) string {
	if instance == "" {
		return "outrider-capture.service"
	}
	return "outrider-capture@" + instance + ".service"
}

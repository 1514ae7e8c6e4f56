package envoy

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// CommandLine holds the arguments of one epoch.
type CommandLine struct {
	ConfigFile   string // -c; the file's extension selects JSON or YAML
	RestartEpoch int    // --restart-epoch
	// OutriderEpoch is Outrider's epoch number, which is in every log line. It is independent of
	// RestartEpoch.
	OutriderEpoch int

	// HotRestart makes the epoch take over the sockets of its parent and pass them to its child.
	// Without it the epoch shares nothing with others (side by side), and BaseID, SocketPath and
	// ParentShutdownTime are ignored.
	HotRestart bool
	BaseID     uint32 // --base-id; the shared memory is /dev/shm/envoy_shared_memory_<10 × BaseID>
	// SocketPath is --socket-path, the prefix of the hot-restart sockets' paths; "" = abstract
	// sockets, which every local user can open.
	SocketPath string

	DrainTime          time.Duration // --drain-time-s
	ParentShutdownTime time.Duration // --parent-shutdown-time-s

	ServiceCluster string
	ServiceNode    string
	// NodeIP selects --local-address-ip-version; the zero Addr omits the flag.
	NodeIP netip.Addr

	LogLevel          string // -l; "" = Envoy's default
	ComponentLogLevel string // "upstream:debug,misc:error"; "" omits the flag
	Concurrency       int    // worker threads; 0 = Envoy's default, one per core
	StatNameLength    int    // --max-obj-name-len, if the binary lists it; 0 omits it
	ExtraArgs         []string
}

// socketMode is the mode of the hot-restart sockets. Only Envoy's user may write to them, because a
// writer can end an epoch or take over its listeners.
const socketMode = "0600"

// flushFlag sets how long Envoy buffers lines of an access log. With Envoy's default of 10 s, a
// request would appear in the log too late for a person who watches it.
const (
	flushFlag     = "file-flush-interval-msec"
	flushInterval = "1000"
)

// Args returns the arguments for a binary, without optional flags that it does not list. A nil
// binary, or one without flags, is treated as a current Envoy.
func (c CommandLine) Args(binary *Binary) []string {
	args := []string{"-c", c.ConfigFile, "--restart-epoch", strconv.Itoa(c.RestartEpoch)}
	if c.HotRestart {
		args = append(args, "--base-id", strconv.FormatUint(uint64(c.BaseID), 10))
		if c.SocketPath != "" {
			args = append(args, "--socket-path", c.SocketPath, "--socket-mode", socketMode)
		}
	} else {
		args = append(args, "--disable-hot-restart")
	}
	// Envoy's default, gradual, spreads the closing of connections over the drain time. With
	// immediate, some clients reuse a connection that Envoy is about to close.
	args = append(args, "--drain-time-s", seconds(c.DrainTime), "--drain-strategy", "gradual")
	if c.HotRestart {
		args = append(args, "--parent-shutdown-time-s", seconds(c.ParentShutdownTime))
		if binary.knows("skip-hot-restart-parent-stats") {
			// Merging the parent's statistics would block the child's main thread while the parent
			// hangs.
			args = append(args, "--skip-hot-restart-parent-stats")
		}
	}
	args = append(args, c.common(binary)...)
	own := func(arg string) bool { return strings.HasPrefix(arg, "--"+flushFlag) }
	if binary.knows(flushFlag) && !slices.ContainsFunc(c.ExtraArgs, own) {
		args = append(args, "--"+flushFlag, flushInterval)
	}
	if c.Concurrency > 0 {
		args = append(args, "--concurrency", strconv.Itoa(c.Concurrency))
	}
	return append(args, c.ExtraArgs...)
}

// ValidateArgs returns the arguments for validating the configuration file.
func (c CommandLine) ValidateArgs(binary *Binary) []string {
	args := []string{"--mode", "validate", "-c", c.ConfigFile, "--disable-hot-restart"}
	args = append(args, c.common(binary)...)
	args = append(args, "--concurrency", "1") // one worker starts fastest
	return append(args, c.ExtraArgs...)
}

// common returns the arguments that serving and validating share: those of the node and the logs.
func (c CommandLine) common(binary *Binary) []string {
	var args []string
	if c.ServiceCluster != "" {
		args = append(args, "--service-cluster", c.ServiceCluster)
	}
	if c.ServiceNode != "" {
		args = append(args, "--service-node", c.ServiceNode)
	}
	if c.StatNameLength > 0 && binary.lists("max-obj-name-len") {
		args = append(args, "--max-obj-name-len", strconv.Itoa(c.StatNameLength))
	}
	if c.NodeIP.IsValid() {
		version := "v4"
		if c.NodeIP.Is6() && !c.NodeIP.Is4In6() {
			version = "v6"
		}
		args = append(args, "--local-address-ip-version", version)
	}
	args = append(args, "--log-format", logFormat(c.OutriderEpoch))
	if c.LogLevel != "" {
		args = append(args, "-l", c.LogLevel)
	}
	if c.ComponentLogLevel != "" {
		args = append(args, "--component-log-level", c.ComponentLogLevel)
	}
	return args
}

// knows reports whether the binary has a flag that all current Envoys have.
func (b *Binary) knows(flag string) bool { return b == nil || b.Flags == nil || b.Flags[flag] }

// lists reports whether the binary has a flag that only earlier Envoys have.
func (b *Binary) lists(flag string) bool { return b != nil && b.Flags[flag] }

// SupportsStatNameLength reports whether the binary accepts --max-obj-name-len.
func (b *Binary) SupportsStatNameLength() bool { return b.lists("max-obj-name-len") }

// UnknownFlag returns the first long flag in args that the binary does not list, or "". It skips an
// argument after a flag, which may be the flag's value.
func (b *Binary) UnknownFlag(args []string) string {
	value := false
	for _, arg := range args {
		name, isLong := strings.CutPrefix(arg, "--")
		name, _, hasValue := strings.Cut(name, "=")
		if isLong && !value && !b.knows(name) {
			return "--" + name
		}
		value = !value && strings.HasPrefix(arg, "-") && !hasValue
	}
	return ""
}

// seconds formats d in seconds, rounded up so that a drain is never shorter than configured.
func seconds(d time.Duration) string {
	return strconv.FormatInt(int64((max(d, 0)+time.Second-1)/time.Second), 10)
}
